//! The two trees of dynamo-kv-router: the concurrent one that its router uses by default, and the single-threaded one.

use crate::clock::{cpu, trim};
use crate::peer::{Peer, paced};
use crate::workload::{BLOCK_SIZE, Op, What};
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};
use std::future::Future;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

pub fn router_event(op: Op) -> RouterEvent {
    let data = match op.what {
        What::Store { parent, blocks } => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: blocks
                .into_iter()
                .map(|(hash, seq)| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(seq),
                    tokens_hash: LocalBlockHash(hash),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        What::Remove(names) => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: names.into_iter().map(ExternalSequenceBlockHash).collect(),
        }),
        What::Clear => KvCacheEventData::Cleared,
    };
    RouterEvent::new(op.worker, KvCacheEvent { event_id: op.id, data, dp_rank: 0 })
}

fn token_hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK_SIZE, BlockHashOptions::default())
}

fn count_blocks(events: &[RouterEvent]) -> usize {
    events
        .iter()
        .map(|e| match &e.event.data {
            KvCacheEventData::Stored(s) => s.blocks.len(),
            _ => 0,
        })
        .sum()
}

fn summary(scores: &OverlapScores) -> (usize, u64) {
    (scores.scores.len(), scores.scores.values().map(|&depth| depth as u64).sum())
}

/// ConcurrentRadixTreeCompressed with one mutation lane, the crate's own loop on a thread.
pub struct Crtc {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    lane: Option<JoinHandle<()>>,
}

/// A waker that notes the CPU time of the lane's thread: that thread wakes whoever waits for a flush.
#[derive(Default)]
struct Mark(AtomicU64);

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.0.store(cpu() as u64, Ordering::SeqCst);
    }
}

impl Crtc {
    fn start(tasks: (flume::Sender<WorkerTask>, flume::Receiver<WorkerTask>)) -> Crtc {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (t, receiver) = (tree.clone(), tasks.1);
        let lane = std::thread::spawn(move || t.worker(receiver, None).unwrap());
        Crtc { tree, tasks: tasks.0, lane: Some(lane) }
    }
}

impl Drop for Crtc {
    fn drop(&mut self) {
        self.tasks.send(WorkerTask::Terminate).unwrap();
        self.lane.take().unwrap().join().unwrap();
    }
}

impl Peer for Crtc {
    type Hash = LocalBlockHash;
    type Event = RouterEvent;
    type Scores = OverlapScores;

    fn hash(h: u64) -> LocalBlockHash {
        LocalBlockHash(h)
    }

    fn event(op: Op) -> RouterEvent {
        router_event(op)
    }

    fn new(_workers: usize) -> Crtc {
        Crtc::start(flume::unbounded())
    }

    fn apply(&mut self, e: RouterEvent) {
        self.tasks.send(WorkerTask::Event(e)).unwrap();
        if self.tasks.len() > 4096 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let (done, wait) = oneshot::channel();
        self.tasks.send(WorkerTask::Flush(done)).unwrap();
        wait.blocking_recv().unwrap();
    }

    /// The queue is filled before the lane starts, so it never waits; flushes between the phases note its CPU time.
    fn timed(_workers: usize, phases: Vec<Vec<RouterEvent>>) -> (Crtc, Vec<f64>) {
        let (sender, receiver) = flume::unbounded();
        let mut waits = vec![];
        let mut mark = || {
            let (done, mut wait) = oneshot::channel();
            let mark = Arc::new(Mark::default());
            let waker = Waker::from(mark.clone());
            assert!(std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
            waits.push((wait, mark));
            WorkerTask::Flush(done)
        };
        sender.send(mark()).unwrap();
        for phase in phases {
            for e in phase {
                sender.send(WorkerTask::Event(e)).unwrap();
            }
            sender.send(mark()).unwrap();
        }
        trim();
        let mut index = Crtc::start((sender, receiver));
        index.flush();
        let marks: Vec<f64> = waits.iter().map(|(_, m)| m.0.load(Ordering::SeqCst) as f64).collect();
        (index, marks.windows(2).map(|w| w[1] - w[0]).collect())
    }

    fn longest(_workers: usize, _events: Vec<RouterEvent>) -> Option<f64> {
        None
    }

    fn find(&self, query: &[LocalBlockHash]) -> OverlapScores {
        self.tree.find_matches(query, false)
    }

    fn summary(scores: &OverlapScores) -> (usize, u64) {
        summary(scores)
    }

    fn score(&self, _query: &[LocalBlockHash], _out: &mut Vec<(u32, u32)>) -> bool {
        false
    }

    fn hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
        token_hashes(tokens)
    }

    fn dump(&self) -> Option<Box<dyn FnOnce() -> usize>> {
        let events = self.tree.dump_events().unwrap();
        Some(Box::new(move || count_blocks(&events)))
    }

    /// The events go through the lane's queue, from a thread of their own: that is the only way into this tree.
    fn contend(&mut self, queries: &[Vec<LocalBlockHash>], events: Vec<RouterEvent>, rate: f64) -> (Vec<u64>, f64) {
        let tasks = self.tasks.clone();
        let tree = self.tree.clone();
        let result = read_beside(
            queries,
            |q| tree.find_matches(q, false),
            move || {
                let start = Instant::now();
                paced(events, rate, |e| tasks.send(WorkerTask::Event(e)).unwrap());
                while !tasks.is_empty() {
                    std::thread::yield_now();
                }
                start.elapsed().as_secs_f64()
            },
        );
        self.flush();
        result
    }
}

/// RadixTree, which lives on one thread.
pub struct Radix(RadixTree);

impl Peer for Radix {
    type Hash = LocalBlockHash;
    type Event = RouterEvent;
    type Scores = OverlapScores;

    fn hash(h: u64) -> LocalBlockHash {
        LocalBlockHash(h)
    }

    fn event(op: Op) -> RouterEvent {
        router_event(op)
    }

    fn new(_workers: usize) -> Radix {
        Radix(RadixTree::new())
    }

    fn apply(&mut self, e: RouterEvent) {
        self.0.apply_event(e).unwrap();
    }

    fn flush(&mut self) {}

    fn timed(workers: usize, phases: Vec<Vec<RouterEvent>>) -> (Radix, Vec<f64>) {
        direct(workers, phases)
    }

    fn longest(workers: usize, events: Vec<RouterEvent>) -> Option<f64> {
        Some(longest_of::<Radix>(workers, events))
    }

    fn find(&self, query: &[LocalBlockHash]) -> OverlapScores {
        self.0.find_matches(query.to_vec(), false)
    }

    fn summary(scores: &OverlapScores) -> (usize, u64) {
        summary(scores)
    }

    fn score(&self, _query: &[LocalBlockHash], _out: &mut Vec<(u32, u32)>) -> bool {
        false
    }

    fn hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
        token_hashes(tokens)
    }

    fn dump(&self) -> Option<Box<dyn FnOnce() -> usize>> {
        let events = self.0.dump_tree_as_events();
        Some(Box::new(move || count_blocks(&events)))
    }

    fn contend(&mut self, _: &[Vec<LocalBlockHash>], _: Vec<RouterEvent>, _: f64) -> (Vec<u64>, f64) {
        unreachable!("this tree has one thread")
    }
}

/// Peer::timed for a peer whose caller applies.
pub fn direct<P: Peer>(workers: usize, phases: Vec<Vec<P::Event>>) -> (P, Vec<f64>) {
    trim();
    let mut index = P::new(workers);
    let spent = phases
        .into_iter()
        .map(|phase| {
            let start = cpu();
            for e in phase {
                index.apply(e);
            }
            cpu() - start
        })
        .collect();
    (index, spent)
}

/// Peer::longest for a peer whose caller applies.
pub fn longest_of<P: Peer>(workers: usize, events: Vec<P::Event>) -> f64 {
    trim();
    let mut index = P::new(workers);
    let mut most: f64 = 0.0;
    for e in events {
        let start = cpu();
        index.apply(e);
        most = most.max(cpu() - start);
    }
    most
}

/// Asks one query after the other until the writer is done: the time of each, and what the writer gives.
pub fn read_beside<H: Copy, R>(
    queries: &[Vec<H>],
    find: impl Fn(&[H]) -> R,
    writer: impl FnOnce() -> f64 + Send,
) -> (Vec<u64>, f64) {
    let (done, took) = (AtomicBool::new(false), Mutex::new(0.0));
    let mut times = Vec::with_capacity(1 << 21);
    std::thread::scope(|s| {
        s.spawn(|| {
            *took.lock().unwrap() = writer();
            done.store(true, Ordering::Release);
        });
        let mut n = 0;
        while !done.load(Ordering::Acquire) {
            let q = &queries[n * 617 % queries.len()];
            n += 1;
            let start = Instant::now();
            black_box(find(q));
            times.push(start.elapsed().as_nanos() as u64);
        }
    });
    (times, took.into_inner().unwrap())
}
