package load

// list is an order of live requests, linked through Ledger.requests, where index 0 is nobody: adding, moving and removing
// cost the same wherever a request stands, and allocate nothing. The zero value is empty.
type list struct{ first, last uint32 }

// links are a request's neighbours in one list.
type links struct{ prev, next uint32 }

// The lists a request is in.
const (
	byDeadline = iota // of the ledger: all live requests
	bySlot            // of a slot: its live requests
	byPrefill         // of a slot: the requests that prefill, in the order they were booked
	lists
)

func (l *list) push(requests []request, which int, i uint32) {
	requests[i].links[which] = links{prev: l.last}
	if l.last == 0 {
		l.first = i
	} else {
		requests[l.last].links[which].next = i
	}
	l.last = i
}

func (l *list) remove(requests []request, which int, i uint32) {
	at := requests[i].links[which]
	if at.prev == 0 {
		l.first = at.next
	} else {
		requests[at.prev].links[which].next = at.next
	}
	if at.next == 0 {
		l.last = at.prev
	} else {
		requests[at.next].links[which].prev = at.prev
	}
}
