//! kv-index: the index of the SMG gateway.

use crate::dynamo::{direct, longest_of, read_beside};
use crate::peer::{Peer, paced};
use crate::workload::{BLOCK_SIZE, Op, What};
use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, OverlapScores, SequenceHash, StoredBlock, compute_request_content_hashes,
};

pub struct Chain {
    index: ChainIndex,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
}

#[derive(Clone)]
pub struct Event {
    worker: usize,
    what: Change,
}

#[derive(Clone)]
enum Change {
    Store(Option<SequenceHash>, Vec<StoredBlock>),
    Remove(Vec<SequenceHash>),
    Clear,
}

fn apply(index: &ChainIndex, ids: &[u32], maps: &mut [ChainBlockMap], e: Event) {
    let (id, map) = (ids[e.worker], &mut maps[e.worker]);
    match e.what {
        Change::Store(parent, blocks) => index.apply_stored(id, &blocks, parent, map).unwrap(),
        Change::Remove(names) => index.apply_removed(id, &names, map),
        Change::Clear => index.apply_cleared(id, map),
    }
}

impl Peer for Chain {
    type Hash = ContentHash;
    type Event = Event;
    type Scores = OverlapScores;

    fn hash(h: u64) -> ContentHash {
        ContentHash(h)
    }

    fn event(op: Op) -> Event {
        let what = match op.what {
            What::Store { parent, blocks } => Change::Store(
                parent.map(SequenceHash),
                blocks
                    .into_iter()
                    .map(|(hash, seq)| StoredBlock { seq_hash: SequenceHash(seq), content_hash: ContentHash(hash) })
                    .collect(),
            ),
            What::Remove(names) => Change::Remove(names.into_iter().map(SequenceHash).collect()),
            What::Clear => Change::Clear,
        };
        Event { worker: op.worker as usize, what }
    }

    fn new(workers: usize) -> Chain {
        let index = ChainIndex::with_max_workers(workers.max(256)); // 256 is its default
        let ids = (0..workers).map(|w| index.intern_worker(&format!("worker-{w}")).unwrap()).collect();
        Chain { index, ids, maps: (0..workers).map(|_| ChainBlockMap::new()).collect() }
    }

    fn apply(&mut self, e: Event) {
        apply(&self.index, &self.ids, &mut self.maps, e);
    }

    fn flush(&mut self) {}

    fn timed(workers: usize, phases: Vec<Vec<Event>>) -> (Chain, Vec<f64>) {
        direct(workers, phases)
    }

    fn longest(workers: usize, events: Vec<Event>) -> Option<f64> {
        Some(longest_of::<Chain>(workers, events))
    }

    fn find(&self, query: &[ContentHash]) -> OverlapScores {
        self.index.find_matches(query, false)
    }

    fn summary(scores: &OverlapScores) -> (usize, u64) {
        (scores.scores.len(), scores.scores.values().map(|&depth| depth as u64).sum())
    }

    fn score(&self, query: &[ContentHash], out: &mut Vec<(u32, u32)>) -> bool {
        self.index.score_into(query, |h| h.0, false, |worker, depth| out.push((worker, depth)));
        true
    }

    fn hashes(tokens: &[u32]) -> Vec<ContentHash> {
        compute_request_content_hashes(tokens, BLOCK_SIZE as usize)
    }

    fn dump(&self) -> Option<Box<dyn FnOnce() -> usize>> {
        None
    }

    fn contend(&mut self, queries: &[Vec<ContentHash>], events: Vec<Event>, rate: f64) -> (Vec<u64>, f64) {
        let (index, ids, maps) = (&self.index, &self.ids, &mut self.maps);
        read_beside(
            queries,
            |q| index.find_matches(q, false),
            move || paced(events, rate, |e| apply(index, ids, maps, e)),
        )
    }
}
