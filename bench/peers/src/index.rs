//! The measurements of an index; docs/benchmarks.md defines the rows they give.

use crate::clock::{batches, cpu, p99, resident, trim};
use crate::peer::Peer;
use crate::workload::{Base, Chains, Kind, Op, What, long_chain, misses, sequences};
use std::collections::HashMap;
use std::hint::black_box;

const EVENTS_A_SECOND: f64 = 50_000.0;

type Rows = Vec<(&'static str, Vec<f64>)>;

fn built<P: Peer>(workers: usize, base: Option<&Base>, chains: &[Chains]) -> P {
    let mut index = P::new(workers);
    if let Some(base) = base {
        base.stores().for_each(|op| index.apply(P::event(op)));
    }
    for c in chains {
        c.stores(|op| index.apply(P::event(op)));
    }
    index.flush();
    index
}

fn own<P: Peer>(queries: Vec<Vec<u64>>) -> Vec<Vec<P::Hash>> {
    queries.into_iter().map(|q| q.into_iter().map(P::hash).collect()).collect()
}

/// Queries of an index with chains that 64, 1 or 512 workers share.
pub fn queries<P: Peer>(share: u64) -> impl FnMut(&str) -> Rows {
    let chains = |kind| Chains { share, kind };
    let (base, kinds) = match share {
        512 => (None, vec![chains(Kind::Plain)]),
        1 => (Some(Base::new(64, 1_000_000)), vec![chains(Kind::Plain)]),
        _ => (Some(Base::new(64, 1_000_000)), [Kind::Plain, Kind::Forked, Kind::Text].map(chains).to_vec()),
    };
    let mut index: P = built(share.max(64) as usize, base.as_ref(), &kinds);
    let mut sets: HashMap<&'static str, (usize, Vec<Vec<P::Hash>>)> = HashMap::new();
    let plain = |length| own::<P>(chains(Kind::Plain).queries(length));
    sets.insert("match_256", (1000, plain(256)));
    sets.insert("match_1024", (1000, plain(1024)));
    sets.insert("match_8192", (100, plain(8192)));
    sets.insert("match_forked_8192", (20, own::<P>(chains(Kind::Forked).queries(8192))));
    sets.insert("match_miss", (1000, own::<P>(misses(2000))));
    if let Some(base) = &base {
        sets.insert("match_sessions", (1000, own::<P>(base.sessions(2000))));
    }
    let churn: Vec<P::Event> = base.iter().flat_map(|b| b.churn()).map(P::event).collect();
    let texts: HashMap<&'static str, Vec<Vec<u32>>> = HashMap::from([
        ("scores_from_tokens_256", Chains::texts(256)),
        ("scores_from_tokens_8192", Chains::texts(8192)),
    ]);
    move |row| {
        if row == "check" {
            return one(check(&index, &CHECKED.map(|set| sets.get(set).map_or(&[][..], |s| &s.1))));
        }
        if let Some((batch, queries)) = sets.get(row) {
            return one(batches(*batch, |n| {
                black_box(index.find(&queries[n * 617 % queries.len()]));
            }));
        }
        if let Some((batch, queries)) = row.strip_suffix("_into").and_then(|r| sets.get(r)) {
            let mut out = Vec::with_capacity(1024);
            if !index.score(&queries[0], &mut out) {
                return vec![];
            }
            return one(batches(*batch, |n| {
                out.clear();
                index.score(&queries[n * 617 % queries.len()], &mut out);
                black_box(&out);
            }));
        }
        if let Some(texts) = texts.get(row) {
            assert_eq!(P::summary(&index.find(&P::hashes(&texts[0]))).0, share as usize);
            let size = if texts[0].len() > 16_384 { 20 } else { 200 };
            return one(batches(size, |n| {
                black_box(index.find(&P::hashes(&texts[n % texts.len()])));
            }));
        }
        assert_eq!(row, "match_under_writer");
        let events = churn.clone();
        let asked = events.len() as f64 / EVENTS_A_SECOND;
        let (times, took) = index.contend(&sets["match_sessions"].1, events, EVENTS_A_SECOND);
        if took > 1.1 * asked {
            return vec![]; // the writer missed its rate: the machine is busy, or the index too slow
        }
        one(vec![p99(times)])
    }
}

/// The queries whose answers are compared with those of the other sides, in this order.
const CHECKED: [&str; 6] =
    ["match_256", "match_1024", "match_8192", "match_forked_8192", "match_sessions", "match_miss"];

/// For each set of queries the number of answered workers and the sum of their depths.
fn check<P: Peer>(index: &P, sets: &[&[Vec<P::Hash>]]) -> Vec<f64> {
    sets.iter()
        .flat_map(|set| {
            let (mut workers, mut depths) = (0, 0);
            for query in set.iter() {
                let (n, sum) = P::summary(&index.find(query));
                workers += n;
                depths += sum;
            }
            [workers as f64, depths as f64]
        })
        .collect()
}

fn one(samples: Vec<f64>) -> Rows {
    vec![("", samples)]
}

/// Stores, removals, clears and dumps of a base of so many pairs, on new indexes.
pub fn writes<P: Peer>(pairs: usize) -> impl FnMut(&str) -> Rows {
    let base = Base::new(64, pairs);
    let events: Vec<P::Event> = base.stores().map(P::event).collect();
    let removes = base.removes();
    let names: usize = removes.iter().map(|op| if let What::Remove(n) = &op.what { n.len() } else { 0 }).sum();
    let removes: Vec<P::Event> = removes.into_iter().map(P::event).collect();
    let clears: Vec<P::Event> =
        (16..24).map(|worker| P::event(Op { worker, id: 9_000_000, what: What::Clear })).collect();
    let chains = {
        let (mut first, mut rest) = (vec![], vec![]);
        Chains { share: 64, kind: Kind::Plain }
            .stores(|op| if op.worker == 0 { first.push(op) } else { rest.push(op) });
        (first, rest)
    };
    let known: usize =
        chains.1.iter().map(|op| if let What::Store { blocks, .. } = &op.what { blocks.len() } else { 0 }).sum();
    let chains = (
        chains.0.into_iter().map(P::event).collect::<Vec<_>>(),
        if pairs > 1_000_000 { vec![] } else { chains.1.into_iter().map(P::event).collect::<Vec<_>>() },
    );
    move |row| match row {
        "store" => {
            let (_index, spent) = P::timed(64, vec![events.clone()]);
            one(vec![spent[0] / base.pairs as f64])
        }
        "remove" => {
            let (_index, spent) = P::timed(64, vec![events.clone(), removes.clone()]);
            one(vec![spent[1] / names as f64])
        }
        "clear" => {
            let (_index, spent) = P::timed(64, vec![events.clone(), clears.clone()]);
            one(vec![spent[1] / clears.len() as f64])
        }
        "known" => {
            let before = events.iter().chain(&chains.0).cloned().collect();
            let (_index, spent) = P::timed(64, vec![before, chains.1.clone()]);
            one(vec![spent[1] / known as f64])
        }
        "dump" => {
            let (index, _) = P::timed(64, vec![events.clone()]);
            trim(); // what the applied events took
            let start = cpu();
            let Some(count) = index.dump() else { return vec![] };
            let took = cpu() - start;
            assert!(count() > 0);
            one(vec![took])
        }
        "longest" => P::longest(64, events.clone()).map_or(vec![], |most| one(vec![most])),
        _ => panic!("unknown row {row}"),
    }
}

/// Memory of an index, in bytes a pair.
pub fn memory<P: Peer>(shared: bool) -> impl FnMut(&str) -> Rows {
    move |_| {
        let mut pairs = 0;
        let before;
        let index: P = if shared {
            before = resident();
            let mut index = P::new(512);
            Chains { share: 512, kind: Kind::Plain }.stores(|op| {
                if let What::Store { blocks, .. } = &op.what {
                    pairs += blocks.len();
                }
                index.apply(P::event(op));
            });
            index.flush();
            index
        } else {
            let base = Base::new(64, 1_000_000);
            pairs = base.pairs;
            before = resident();
            built(64, Some(&base), &[])
        };
        let used = resident() - before;
        drop(index);
        one(vec![used / pairs as f64])
    }
}

/// Storing one chain of a million blocks, and finding it.
pub fn long<P: Peer>() -> impl FnMut(&str) -> Rows {
    let (hashes, ops) = long_chain();
    let query = own::<P>(vec![hashes]).remove(0);
    let events: Vec<P::Event> = ops.into_iter().map(P::event).collect();
    move |_| {
        let (index, spent) = P::timed(64, vec![events.clone()]);
        assert_eq!(P::summary(&index.find(&query)), (1, query.len() as u64));
        let found = batches(1, |_| {
            black_box(index.find(&query));
        });
        vec![("store", vec![spent[0] / query.len() as f64]), ("match", found)]
    }
}

/// Block hashes and sequence hashes of 4,096 tokens.
pub fn hashing<P: Peer<Hash = dynamo_kv_router::protocols::LocalBlockHash>>() -> impl FnMut(&str) -> Rows {
    let tokens = crate::workload::tokens(1, 4096);
    assert_eq!(sequences(&crate::workload::token_hashes(&tokens)).len(), 256);
    move |_| {
        one(batches(1000, |_| {
            let hashes = P::hashes(black_box(&tokens));
            black_box(dynamo_kv_router::protocols::compute_seq_hash_for_block(&hashes));
        }))
    }
}
