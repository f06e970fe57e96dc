//! The measurements of the log of one worker's events, which answers what happened since one: LocalKvIndexer.

use crate::clock::{batches, trim};
use crate::dynamo::router_event;
use crate::workload::Base;
use dynamo_kv_router::indexer::{KvIndexerInterface, KvIndexerMetrics, LocalKvIndexer, WorkerKvQueryResponse};
use dynamo_kv_router::protocols::*;
use std::hint::black_box;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

const KEPT: usize = 10_000;
const GAP: u64 = 100;

/// CPU time of this process in nanoseconds: an actor has a thread of its own.
fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// An indexer that has applied and kept these events, and the CPU time it took.
fn recorded(rt: &Runtime, events: Vec<RouterEvent>) -> (LocalKvIndexer, CancellationToken, f64) {
    let end = CancellationToken::new();
    let indexer = LocalKvIndexer::new(end.clone(), 16, Arc::new(KvIndexerMetrics::new_unregistered()), KEPT);
    trim();
    let start = cpu();
    rt.block_on(async {
        for event in events {
            indexer.apply_event_with_buffer(event).await.unwrap();
        }
        indexer.flush().await;
    });
    (indexer, end, cpu() - start)
}

pub fn replay() -> impl FnMut(&str) -> Vec<(&'static str, Vec<f64>)> {
    let rt = Builder::new_current_thread().enable_time().build().unwrap();
    let many: Vec<RouterEvent> = Base::new(1, 200_000).stores().map(router_event).collect();
    let few: Vec<RouterEvent> = Base::new(1, 100_000).stores().map(router_event).collect();
    move |measure| {
        let (indexer, end, took) = recorded(&rt, if measure == "dump" { few.clone() } else { many.clone() });
        let last = many.last().unwrap().event.event_id;
        let rows = match measure {
            "record" => vec![("", vec![took / many.len() as f64])],
            "gap" => {
                let samples = batches(1000, |_| {
                    match rt.block_on(indexer.get_events_in_id_range(Some(last - GAP + 1), Some(last))) {
                        WorkerKvQueryResponse::Events { events, .. } => assert_eq!(events.len(), GAP as usize),
                        _ => panic!("no events"),
                    }
                });
                vec![("", samples)]
            }
            _ => {
                trim();
                let start = cpu();
                black_box(rt.block_on(indexer.get_events_in_id_range(None, None)));
                let fresh = cpu() - start;
                let again = batches(10, |_| {
                    black_box(rt.block_on(indexer.get_events_in_id_range(None, None)));
                });
                vec![("fresh", vec![fresh]), ("again", again)]
            }
        };
        end.cancel();
        rows
    }
}
