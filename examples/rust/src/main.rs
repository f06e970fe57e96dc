//! `examples/c/follow.c` in Rust: route by what an engine really holds.
//!
//! Build and run, from the root of the project:
//!
//! ```sh
//! ./build.sh lib
//! cargo run --manifest-path examples/rust/Cargo.toml -- build/libdynamo_go.so
//! ```

use dynamo_go::{Library, Mocker, Router};
use std::{env, error, thread, time::Duration};

/// A string member of a JSON object. A program would use serde_json.
fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":\"");
    let rest = &json[json.find(&key)? + key.len()..];
    Some(&rest[..rest.find('"')?])
}

fn main() -> Result<(), Box<dyn error::Error>> {
    let path = env::args().nth(1).ok_or("usage: dynamo-go LIBRARY")?;
    let library = Library::load(&path)?;
    let engine = Mocker::new(&library, Some(r#"{"block_size":4,"inter_token_ms":0}"#))?;
    let info = engine.info()?;

    let router = Router::new(&library, 4, None)?;
    let id = 0xF123_4567_89AB_CDEF;
    router.add_worker(id, member(&info, "kv_events"), member(&info, "replay"))?;

    let prompt = [11, 12, 13, 14, 21, 22, 23, 24, 31, 32];
    let answer = engine.generate(&prompt, Some(r#"{"max_tokens":5}"#))?;
    let mut tokens = 0;
    while let Some(items) = answer.next_batch()? {
        tokens += items.len();
    }

    for _ in 0..1000 {
        // the events come by themselves
        let choice = router.best_worker(&prompt, Some("request-1"))?;
        router.free("request-1")?;
        assert_eq!(choice.worker_id, id);
        if choice.overlap_blocks == 2 {
            println!("{tokens} tokens; worker {id:#x} holds 2 blocks of the prompt");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err("the events did not come".into())
}
