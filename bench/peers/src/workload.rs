//! The workload of core/internal/workload, bit for bit; `peers digests` prints what its tests expect.

use dynamo_kv_router::protocols::{
    BlockHashOptions, LocalBlockHash, compute_block_hash_for_seq, compute_next_seq_hash, compute_seq_hash_for_block,
};
use std::collections::HashSet;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

pub fn mix(z: u64) -> u64 {
    let mut z = z.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        let n = mix(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        n
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub const PREFIX: u64 = 1;
pub const USER: u64 = 2;
const PLAIN: u64 = 3;
const MISSING: u64 = 4;
const SIDE: u64 = 5;
const FORKED: u64 = 6;
const TOKEN: u64 = 7;

pub const PREFIXES: u64 = 100;
pub const PREFIX_BLOCKS: u64 = 64;
pub const BLOCK_SIZE: u32 = 16;

pub fn hash(tag: u64, a: u64, i: u64) -> u64 {
    mix(mix(mix(tag) ^ a) ^ i)
}

pub fn hashes(tag: u64, a: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| hash(tag, a, i)).collect()
}

pub fn tokens(a: u64, n: u64) -> Vec<u32> {
    (0..n).map(|j| (hash(TOKEN, a, j) % 128_000) as u32).collect()
}

pub fn token_hashes(tokens: &[u32]) -> Vec<u64> {
    compute_block_hash_for_seq(tokens, BLOCK_SIZE, BlockHashOptions::default()).iter().map(|h| h.0).collect()
}

pub fn sequences(hashes: &[u64]) -> Vec<u64> {
    compute_seq_hash_for_block(&hashes.iter().map(|&h| LocalBlockHash(h)).collect::<Vec<_>>())
}

/// A change of what a worker holds. A block is its content hash and its sequence hash; removals name sequence hashes.
#[derive(Clone)]
pub struct Op {
    pub worker: u64,
    pub id: u64,
    pub what: What,
}

#[derive(Clone)]
pub enum What {
    Store { parent: Option<u64>, blocks: Vec<(u64, u64)> },
    Remove(Vec<u64>),
    Clear,
}

fn store(worker: u64, id: u64, parent: Option<u64>, hashes: &[u64], seqs: &[u64]) -> Op {
    let blocks = hashes.iter().copied().zip(seqs.iter().copied()).collect();
    Op { worker, id, what: What::Store { parent, blocks } }
}

struct User {
    prefix: usize,
    hashes: Vec<u64>,
    seqs: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Run {
    user: bool,
    id: usize,
    from: usize,
    to: usize,
}

pub struct Base {
    pub pairs: usize,
    users: Vec<User>,
    placed: Vec<(usize, usize)>,
    queues: Vec<Vec<Run>>,
    prefixes: Vec<(Vec<u64>, Vec<u64>)>,
}

impl Base {
    pub fn new(workers: usize, pairs: usize) -> Base {
        let prefixes = (0..PREFIXES)
            .map(|p| {
                let h = hashes(PREFIX, p, PREFIX_BLOCKS);
                let s = sequences(&h);
                (h, s)
            })
            .collect();
        let mut b = Base { pairs: 0, users: vec![], placed: vec![], queues: vec![vec![]; workers], prefixes };
        let mut rng = Rng(42);
        let mut has = HashSet::new();
        while b.pairs < pairs {
            let w = rng.below(workers as u64) as usize;
            let r = rng.below(4);
            let u = if r == 0 && !b.users.is_empty() {
                rng.below(b.users.len() as u64) as usize
            } else {
                b.add_user(&mut rng);
                b.users.len() - 1
            };
            let p = b.users[u].prefix;
            if has.insert((w, false, p)) {
                b.queue(&mut rng, w, Run { user: false, id: p, from: 0, to: PREFIX_BLOCKS as usize });
            }
            if has.insert((w, true, u)) {
                b.placed.push((w, u));
                let to = b.users[u].seqs.len();
                b.queue(&mut rng, w, Run { user: true, id: u, from: 0, to });
            }
        }
        b
    }

    fn add_user(&mut self, rng: &mut Rng) {
        let a = rng.below(PREFIXES);
        let prefix = rng.below(a + 1) as usize;
        let hashes = hashes(USER, self.users.len() as u64, 32 + rng.below(481));
        let mut last = *self.prefixes[prefix].1.last().unwrap();
        let seqs = hashes
            .iter()
            .map(|&h| {
                last = compute_next_seq_hash(last, LocalBlockHash(h));
                last
            })
            .collect();
        self.users.push(User { prefix, hashes, seqs });
    }

    fn queue(&mut self, rng: &mut Rng, worker: usize, mut run: Run) {
        let end = run.to;
        while run.from < end {
            run.to = end.min(run.from + 1 + rng.below(32) as usize);
            self.queues[worker].push(run);
            self.pairs += run.to - run.from;
            run.from = run.to;
        }
    }

    fn in_turns(queues: &[Vec<Run>]) -> impl Iterator<Item = (usize, usize, Run)> {
        let rounds = queues.iter().map(Vec::len).max().unwrap_or(0);
        (0..rounds).flat_map(move |round| {
            queues.iter().enumerate().filter_map(move |(w, q)| q.get(round).map(|&r| (round, w, r)))
        })
    }

    pub fn stores(&self) -> impl Iterator<Item = Op> + '_ {
        Self::in_turns(&self.queues).map(|(round, w, r)| {
            let (top, hashes, seqs) = if r.user {
                let u = &self.users[r.id];
                (self.prefixes[u.prefix].1.last(), &u.hashes, &u.seqs)
            } else {
                let (h, s) = &self.prefixes[r.id];
                (None, h, s)
            };
            let parent = if r.from == 0 { top.copied() } else { Some(seqs[r.from - 1]) };
            store(w as u64, round as u64 + 1, parent, &hashes[r.from..r.to], &seqs[r.from..r.to])
        })
    }

    pub fn removes(&self) -> Vec<Op> {
        let mut queues = vec![vec![]; self.queues.len()];
        let mut rng = Rng(43);
        for &(w, u) in self.placed.iter().step_by(2) {
            let mut left = self.users[u].seqs.len();
            while left > 0 {
                let n = left.min(1 + rng.below(32) as usize);
                queues[w].push(Run { user: true, id: u, from: left - n, to: left });
                left -= n;
            }
        }
        Self::in_turns(&queues)
            .map(|(round, w, r)| {
                let names = self.users[r.id].seqs[r.from..r.to].iter().rev().copied().collect();
                Op { worker: w as u64, id: 1_000_000 + round as u64, what: What::Remove(names) }
            })
            .collect()
    }

    /// The removes, and then the stores that bring back what they took.
    pub fn churn(&self) -> Vec<Op> {
        let mut ops = self.removes();
        let mut gone = HashSet::new();
        for op in &ops {
            if let What::Remove(names) = &op.what {
                gone.extend(names.iter().map(|&n| (op.worker, n)));
            }
        }
        ops.extend(self.stores().filter(|op| match &op.what {
            What::Store { blocks, .. } => gone.contains(&(op.worker, blocks[0].1)),
            _ => false,
        }));
        ops
    }

    pub fn sessions(&self, n: usize) -> Vec<Vec<u64>> {
        let mut rng = Rng(11);
        (0..n)
            .map(|_| {
                let u = &self.users[rng.below(self.users.len() as u64) as usize];
                [&self.prefixes[u.prefix].0[..], &u.hashes[..]].concat()
            })
            .collect()
    }
}

pub const CHAIN_LENGTHS: [(u64, u64); 5] = [(16, 64), (64, 64), (256, 64), (1024, 16), (8192, 4)];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Forked,
    Text,
}

#[derive(Clone, Copy)]
pub struct Chains {
    pub share: u64,
    pub kind: Kind,
}

impl Chains {
    fn hashes(&self, length: u64, number: u64) -> Vec<u64> {
        let object = length << 32 | number;
        match self.kind {
            Kind::Plain => hashes(PLAIN, object, length),
            Kind::Forked => hashes(FORKED, object, length),
            Kind::Text => token_hashes(&tokens(object, length * BLOCK_SIZE as u64)),
        }
    }

    fn holder(&self, number: u64, k: u64) -> u64 {
        if self.share >= 64 { k } else { (self.share * number + k) % 64 }
    }

    pub fn stores(&self, mut emit: impl FnMut(Op)) {
        for (length, count) in CHAIN_LENGTHS {
            for number in 0..count {
                let (object, hashes) = (length << 32 | number, self.hashes(length, number));
                let seqs = sequences(&hashes);
                for from in (0..hashes.len()).step_by(32) {
                    let to = hashes.len().min(from + 32);
                    let parent = (from > 0).then(|| seqs[from - 1]);
                    for k in 0..self.share {
                        emit(store(self.holder(number, k), 500_000, parent, &hashes[from..to], &seqs[from..to]));
                    }
                }
                if self.kind != Kind::Forked {
                    continue;
                }
                let mut k = (length as usize - 1) / 16 * 16;
                while k > 0 {
                    let h = hash(SIDE, object, k as u64);
                    let s = compute_next_seq_hash(seqs[k - 1], LocalBlockHash(h));
                    emit(store(self.holder(number, 0), 600_000, Some(seqs[k - 1]), &[h], &[s]));
                    k -= 16;
                }
            }
        }
    }

    pub fn queries(&self, length: u64) -> Vec<Vec<u64>> {
        let count = CHAIN_LENGTHS.iter().find(|l| l.0 == length).unwrap().1;
        (0..count).map(|number| self.hashes(length, number)).collect()
    }

    pub fn texts(length: u64) -> Vec<Vec<u32>> {
        let count = CHAIN_LENGTHS.iter().find(|l| l.0 == length).unwrap().1;
        (0..count).map(|number| tokens(length << 32 | number, length * BLOCK_SIZE as u64)).collect()
    }
}

pub fn misses(n: u64) -> Vec<Vec<u64>> {
    (0..n).map(|k| hashes(MISSING, k, 256)).collect()
}

/// One chain of a million blocks, worker 0's.
pub fn long_chain() -> (Vec<u64>, Vec<Op>) {
    let hashes = hashes(PLAIN, 1 << 40, 1_000_000);
    let seqs = sequences(&hashes);
    let ops = (0..hashes.len())
        .step_by(32)
        .map(|from| {
            let to = hashes.len().min(from + 32);
            store(0, 500_000, (from > 0).then(|| seqs[from - 1]), &hashes[from..to], &seqs[from..to])
        })
        .collect();
    (hashes, ops)
}

/// Sequence hashes of a request of 128 blocks, half of them a shared prefix's.
pub fn active_request(k: u64, rng: &mut Rng) -> Vec<u64> {
    let a = rng.below(PREFIXES);
    let p = rng.below(a + 1);
    let mut h = hashes(PREFIX, p, PREFIX_BLOCKS);
    h.extend(hashes(USER, 1_000_000 + k, 64));
    sequences(&h)
}

pub fn digest(ops: impl Iterator<Item = Op>) -> u64 {
    let mut h = 0;
    let mut add = |n: u64| h = mix(h ^ n);
    for op in ops {
        add(op.worker);
        add(op.id);
        match op.what {
            What::Store { parent, blocks } => {
                add(parent.unwrap_or(0));
                for (hash, seq) in blocks {
                    add(hash);
                    add(seq);
                }
            }
            What::Remove(names) => names.into_iter().for_each(&mut add),
            What::Clear => {}
        }
    }
    h
}
