//! Measures two Rust indexes for ../../docs/benchmarks.md: `peers STRUCTURE SITUATION` prepares, says "ready", then answers
//! each line of standard input, the name of a measurement, with lines of "row sample sample ..." and "done measurement". A row
//! without a name is the measurement's own. No row: this structure cannot do it.

mod chain;
mod clock;
mod decision;
mod dynamo;
mod index;
mod peer;
mod replay;
mod workload;

use peer::Peer;
use std::io::{BufRead, Write};

type Measure = Box<dyn FnMut(&str) -> Vec<(&'static str, Vec<f64>)>>;

fn situation<P: Peer + 'static>(name: &str) -> Option<Measure> {
    Some(match name {
        "share64" => Box::new(index::queries::<P>(64)),
        "share1" => Box::new(index::queries::<P>(1)),
        "share512" => Box::new(index::queries::<P>(512)),
        "writes_1M" => Box::new(index::writes::<P>(1_000_000)),
        "writes_5M" => Box::new(index::writes::<P>(5_000_000)),
        "memory_unique" => Box::new(index::memory::<P>(false)),
        "memory_share512" => Box::new(index::memory::<P>(true)),
        "chain_1M" => Box::new(index::long::<P>()),
        _ => return None,
    })
}

fn digests() {
    for (workers, pairs) in [(1, 100_000), (64, 200_000), (64, 1_000_000), (64, 5_000_000)] {
        let base = workload::Base::new(workers, pairs);
        println!("base {workers} {pairs}: {} pairs, {:#018x}", base.pairs, workload::digest(base.stores()));
        if pairs == 1_000_000 {
            println!("removes: {:#018x}", workload::digest(base.removes().into_iter()));
        }
    }
    for share in [1, 8] {
        for (name, kind) in [("plain", workload::Kind::Plain), ("forked", workload::Kind::Forked)] {
            let mut ops = vec![];
            workload::Chains { share, kind }.stores(|op| ops.push(op));
            println!("{name} chains, share {share}: {:#018x}", workload::digest(ops.into_iter()));
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let measure = match words[..] {
        ["digests"] => return digests(),
        ["crtc", "hash"] => Some(Box::new(index::hashing::<dynamo::Crtc>()) as Measure),
        ["crtc", "select"] => Some(Box::new(decision::select()) as Measure),
        ["crtc", "active"] => Some(Box::new(decision::active()) as Measure),
        ["local", "replay"] => Some(Box::new(replay::replay()) as Measure),
        ["crtc", "decide"] => Some(Box::new(decision::decide()) as Measure),
        ["crtc", name] => situation::<dynamo::Crtc>(name),
        ["radix", name] => situation::<dynamo::Radix>(name),
        ["chain", name] => situation::<chain::Chain>(name),
        _ => None,
    };
    let Some(mut measure) = measure else {
        eprintln!("usage: peers crtc|radix|chain|local SITUATION | digests");
        std::process::exit(2);
    };
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        for (row, samples) in measure(&line) {
            let samples: Vec<String> = samples.iter().map(f64::to_string).collect();
            println!("{row} {}", samples.join(" "));
        }
        println!("done {line}");
        std::io::stdout().flush().unwrap();
    }
}
