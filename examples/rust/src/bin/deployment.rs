//! `examples/cpp/deployment.cpp` in Rust: an engine of your own as a worker of a Dynamo deployment, and a router in front of it.
//!
//! Build and run, from the root of the project:
//!
//! ```sh
//! ./build.sh lib
//! cargo run --manifest-path examples/rust/Cargo.toml --bin deployment -- build/libdynamo_go.so build/discovery
//! ```

use dynamo_go::{notice, Error, Event, Library, Router, Runtime, CANCELLED, CLOSED, OK};
use std::{env, error, thread, time::Duration};

const ENDPOINT: &str = "example.backend.generate";
const PROMPT: [u32; 10] = [11, 12, 13, 14, 21, 22, 23, 24, 31, 32];
const NO_WORKERS: i32 = 9;

/// A process of the deployment that is told of by files in a directory. It listens on this machine only.
fn join(library: &Library, directory: &str) -> Result<Runtime, Error> {
    let hosts = r#""DYN_TCP_RPC_HOST":"127.0.0.1","DYN_TCP_RESPONSE_STREAM_HOST":"127.0.0.1","DYN_EVENT_PLANE_HOST":"127.0.0.1""#;
    Runtime::new(library, Some(&format!(r#"{{"path":"{directory}","environment":{{{hosts}}}}}"#)))
}

/// `{"token_ids":[token]}`, the last one with `"finish_reason":"stop"`. A program would use a MessagePack crate.
fn item(token: u8, last: bool) -> Vec<u8> {
    let mut b = vec![if last { 0x82 } else { 0x81 }];
    b.extend_from_slice(b"\xa9token_ids\x91");
    b.push(token);
    if last {
        b.extend_from_slice(b"\xadfinish_reason\xa4stop");
    }
    b
}

/// Serves until the runtime is closed.
fn work(runtime: &Runtime) -> Result<(), Error> {
    let cache = runtime.publisher(ENDPOINT, r#"{"block_size":4}"#)?;
    let card = r#"{"display_name":"example","kv_cache_block_size":4,
        "runtime_config":{"total_kv_blocks":1000,"enable_local_indexer":true}}"#;
    runtime.model(ENDPOINT, runtime.id()?, Some(card))?;
    runtime.serve(ENDPOINT, None)?;
    let mut cached = false;
    while let Some(notices) = runtime.notices()? {
        for call in notices.iter().filter(|n| n.kind == notice::REQUEST).map(|n| n.id) {
            // The engine runs the payload's prompt, of which it keeps the first two blocks, under names of its own.
            if !cached {
                let event = Event::Stored { block_hashes: &[1001, 1002], tokens: &PROMPT[..8], block_size: 4, parent: None };
                cache.publish(0, &[event])?;
                cached = true;
            }
            for token in 1..=3 {
                match runtime.answer(call, &item(token, token == 3)) {
                    Err(e) if e.status == CANCELLED => break, // the caller is gone
                    result => result?,
                };
            }
            runtime.end(call)?;
        }
    }
    Ok(())
}

/// Sends the prompt where it is best: how the call ended, and the number of items.
fn generate(runtime: &Runtime, router: &Router) -> Result<(i32, usize), Error> {
    let call = router.generate(&PROMPT, None, None)?;
    let mut items = 0;
    while let Some(notices) = runtime.notices()? {
        for n in notices.iter().filter(|n| n.id == call) {
            match n.kind {
                notice::ENDED => return Ok((n.flags as i32, items)),
                notice::ITEM if n.flags & notice::NOTE == 0 => {
                    items += 1;
                    runtime.more(call, 1)?;
                }
                _ => {}
            }
        }
    }
    Ok((CLOSED, items))
}

/// Sends the prompt until the worker is there and its events are known.
fn route(library: &Library, directory: &str, worker: u64) -> Result<(), Box<dyn error::Error>> {
    let runtime = join(library, directory)?;
    let router = runtime.router(ENDPOINT, 4, None)?;
    let mut answer = (NO_WORKERS, 0);
    for _ in 0..1000 {
        if answer.0 != OK {
            answer = generate(&runtime, &router)?;
        }
        if answer.0 == OK {
            let choice = router.best_worker(&PROMPT, None)?;
            if choice.worker_id == worker && choice.overlap_blocks == 2 {
                println!("{} items; the worker holds 2 blocks of the prompt", answer.1);
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("the worker or its events did not come: {answer:?}").into())
}

fn main() -> Result<(), Box<dyn error::Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, path, directory] = &arguments[..] else { return Err("usage: deployment LIBRARY DIRECTORY".into()) };
    let library = Library::load(path)?;
    let runtime = join(&library, directory)?;
    let id = runtime.id()?;
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&runtime));
        let result = route(&library, directory, id);
        runtime.close();
        match worker.join().expect("the worker does not panic") {
            Err(e) if e.status != CLOSED => Err(e.into()),
            _ => result,
        }
    })
}
