package publish

import (
	"errors"
	"fmt"
	"math"

	"github.com/dynamo-go/dynamo-go/core/zmq"
)

// MaxRanks bounds the ranks of a worker.
const MaxRanks = 4096

// A Worker is the sources of all data-parallel ranks of a worker that run in this process.
type Worker struct {
	first   uint32
	sources []*Source
}

// NewWorker starts a source for each of so many ranks. cfg is that of the first; its endpoints are bases, to whose ports, unless
// they are 0, each source adds its rank, as engines do. ErrConfig: ranks is not in 1..MaxRanks, or two sockets would have one port.
// Other errors are those of NewSource and of package zmq; no source is left then.
func NewWorker(cfg SourceConfig, ranks uint32) (*Worker, error) {
	w := &Worker{first: cfg.Rank.DPRank}
	if ranks < 1 || ranks > MaxRanks || uint64(w.first)+uint64(ranks)-1 > math.MaxUint32 {
		return nil, fmt.Errorf("%w: ranks %d from %d on, must be 1..%d up to %d", ErrConfig, ranks, w.first, MaxRanks, uint32(math.MaxUint32))
	}
	all := make([]SourceConfig, ranks)
	taken := map[string]bool{}
	for i := range all {
		all[i] = cfg
		all[i].Rank.DPRank += uint32(i)
		if err := bind(&all[i], taken); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	for i := range all {
		source, err := NewSource(all[i])
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.sources = append(w.sources, source)
	}
	return w, nil
}

// bind adds the rank to the ports of a configuration, none of which may be taken by another socket.
func bind(cfg *SourceConfig, taken map[string]bool) error {
	for _, endpoint := range []*string{&cfg.Endpoint, &cfg.Replay, &cfg.Query} {
		if *endpoint == "" {
			continue
		}
		bound, err := zmq.BindEndpoint(*endpoint, cfg.Rank.DPRank)
		if err != nil {
			return err
		}
		if taken[bound] && !zmq.TakesFreePort(bound) {
			return fmt.Errorf("two sockets at %s: leave as many ports between the bases as there are ranks", bound)
		}
		*endpoint, taken[bound] = bound, true
	}
	return nil
}

// Rank gives the source of a rank, nil if the worker has no such rank.
func (w *Worker) Rank(rank uint32) *Source {
	if i := uint64(rank) - uint64(w.first); i < uint64(len(w.sources)) {
		return w.sources[i]
	}
	return nil
}

// Sources gives the sources of all ranks, in order.
func (w *Worker) Sources() []*Source { return w.sources }

// Close stops all of them. It is idempotent.
func (w *Worker) Close() error {
	var err error
	for _, s := range w.sources {
		err = errors.Join(err, s.Close())
	}
	return err
}
