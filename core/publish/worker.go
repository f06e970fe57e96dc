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
	taken := map[string]bool{}
	for rank := w.first; len(w.sources) < int(ranks); rank++ {
		source, err := startRank(cfg, rank, taken)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.sources = append(w.sources, source)
	}
	return w, nil
}

// startRank starts the source of a rank, whose endpoints must not be taken by another one.
func startRank(cfg SourceConfig, rank uint32, taken map[string]bool) (*Source, error) {
	cfg.Rank.DPRank = rank
	for _, endpoint := range []*string{&cfg.Endpoint, &cfg.Replay, &cfg.Query} {
		if *endpoint == "" {
			continue
		}
		bound, err := zmq.BindEndpoint(*endpoint, rank)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		if free := zmq.TakesFreePort(bound); !free && taken[bound] {
			return nil, fmt.Errorf("%w: two sockets at %s: leave as many ports between the bases as there are ranks", ErrConfig, bound)
		}
		*endpoint, taken[bound] = bound, true
	}
	return NewSource(cfg)
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
