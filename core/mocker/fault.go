package mocker

import (
	"fmt"
	"net/http"
	"time"
)

// A fault is how the next requests for an answer go wrong, for tests of who sends them.
type fault struct {
	Requests int    `json:"requests"`  // how many of them; 0: none, as of now
	DelayMS  int    `json:"delay_ms"`  // before anything else happens to them, 0 .. 600000
	Status   int    `json:"status"`    // they are answered with this status, 400 .. 599; 0: they are served
	CutAfter *int   `json:"cut_after"` // the connection is cut after so many events of a stream, or without an answer; absent: it is not
	Message  string `json:"message"`   // of the error
}

func (f *fault) check() error {
	switch {
	case f.Requests < 0:
		return badRequest("requests", "requests is %d, must be at least 0", f.Requests)
	case f.DelayMS < 0 || f.DelayMS > 600_000:
		return badRequest("delay_ms", "delay_ms is %d, must be in 0..600000", f.DelayMS)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return badRequest("status", "status is %d, must be in 400..599", f.Status)
	case f.CutAfter != nil && *f.CutAfter < 0:
		return badRequest("cut_after", "cut_after is %d, must be at least 0", *f.CutAfter)
	}
	return nil
}

// setFault is POST /fault.
func (m *Mocker) setFault(w http.ResponseWriter, r *http.Request) {
	var f fault
	if bad := m.decode(w, r, &f, "a fault"); bad != nil {
		bad.write(w)
		return
	}
	m.mu.Lock()
	m.fault = f
	m.mu.Unlock()
	writeJSON(w, http.StatusOK, f)
}

// fail tells what goes wrong with a request; nil if nothing does.
func (m *Mocker) fail() *fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault.Requests == 0 {
		return nil
	}
	m.fault.Requests--
	f := m.fault
	return &f
}

// suffer lets a fault happen to a request that is not yet served; done is false if it is to be served, as far as the fault lets it.
func (m *Mocker) suffer(f *fault, w http.ResponseWriter, r *http.Request) (done bool) {
	if f == nil {
		return false
	}
	wait := time.NewTimer(time.Duration(f.DelayMS) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.Context().Done():
		return true
	case <-m.ctx.Done():
		return true
	}
	if f.Status != 0 {
		message := f.Message
		if message == "" {
			message = fmt.Sprintf("a fault was asked for: status %d", f.Status)
		}
		refuse(f.Status, "fault", "fault", "%s", message).write(w)
		return true
	}
	if f.CutAfter != nil && *f.CutAfter == 0 {
		panic(http.ErrAbortHandler) // net/http's way to cut a connection
	}
	return false
}
