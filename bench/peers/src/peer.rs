//! What the measurements of an index ask of a peer.

use crate::workload::Op;

pub trait Peer: Sized {
    type Hash: Copy;
    type Event: Clone;
    type Scores;

    fn hash(h: u64) -> Self::Hash;
    fn event(op: Op) -> Self::Event;

    fn new(workers: usize) -> Self;

    /// Applies an event, now or soon.
    fn apply(&mut self, e: Self::Event);

    /// Returns when everything was applied.
    fn flush(&mut self);

    /// Applies phases of events to a new index: the CPU nanoseconds of each, on the thread that applies.
    fn timed(workers: usize, phases: Vec<Vec<Self::Event>>) -> (Self, Vec<f64>);

    /// The most CPU nanoseconds that one event takes, if a caller can tell.
    fn longest(workers: usize, events: Vec<Self::Event>) -> Option<f64>;

    /// Every worker with its depth, as a map of the peer's own.
    fn find(&self, query: &[Self::Hash]) -> Self::Scores;

    /// The number of workers in it, and the sum of their depths.
    fn summary(scores: &Self::Scores) -> (usize, u64);

    /// The same into a caller's list, if the peer has that.
    fn score(&self, query: &[Self::Hash], out: &mut Vec<(u32, u32)>) -> bool;

    /// The block hashes of token ids.
    fn hashes(tokens: &[u32]) -> Vec<Self::Hash>;

    /// A copy of everything as events, if the peer has that; gives the number of blocks in it.
    fn dump(&self) -> Option<Box<dyn FnOnce() -> usize>>;

    /// Wall nanoseconds of each query while a writer applies the events at a rate a second, and the seconds it took.
    fn contend(&mut self, queries: &[Vec<Self::Hash>], events: Vec<Self::Event>, rate: f64) -> (Vec<u64>, f64);
}

/// Calls apply with each event, in bursts of a millisecond's worth.
pub fn paced<E>(events: Vec<E>, rate: f64, mut apply: impl FnMut(E)) -> f64 {
    let start = std::time::Instant::now();
    let mut sent = 0;
    for e in events {
        apply(e);
        sent += 1;
        let due = std::time::Duration::from_secs_f64(sent as f64 / rate);
        if sent % (rate as usize / 1000) == 0 {
            if let Some(early) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(early);
            }
        }
    }
    start.elapsed().as_secs_f64()
}
