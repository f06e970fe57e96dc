//! The measurements of a decision: scoring alone, bookings alone, and the whole of it.

use crate::clock::{Samples, batches, cpu};
use crate::dynamo::router_event;
use crate::peer::Peer;
use crate::workload::*;
use dynamo_kv_router::indexer::*;
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::scheduling::overlap_refresh::NoopOverlapScoresRefresh;
use dynamo_kv_router::scheduling::{OverlapAnalysis, OverlapSignals, PolicyProfile, ScheduleMode, ScheduleRequest};
use dynamo_kv_router::test_utils::SimpleWorkerConfig;
use dynamo_kv_router::*;
use rustc_hash::FxHashMap;
use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;

type Rows = Vec<(&'static str, Vec<f64>)>;

/// The workers of a row's name: its last part.
fn workers_of(row: &str) -> u64 {
    row.rsplit('_').next().unwrap().parse().unwrap()
}

/// WorkerSelectionPolicy::reference over given loads and overlaps.
pub fn select() -> impl FnMut(&str) -> Rows {
    |row| {
        let n = workers_of(row);
        let (mut workers, mut overlap, mut loads) = (HashMap::new(), OverlapSignals::default(), FxHashMap::default());
        for id in 0..n {
            let worker = WorkerWithDpRank::new(id, 0);
            let cached = (id as usize % 32) * 64;
            workers.insert(id, SimpleWorkerConfig { total_kv_blocks: Some(131_072), ..Default::default() });
            overlap.effective_overlap_blocks.insert(worker, cached as f64 / 16.0);
            overlap.effective_cached_tokens.insert(worker, cached);
            loads.insert(
                worker,
                WorkerLoadProjection {
                    active_prefill_tokens: id as usize * 16,
                    active_decode_blocks: id as usize % 127,
                    active_requests: id as usize % 17,
                    ..Default::default()
                },
            );
        }
        let request = SchedulingRequest {
            mode: ScheduleMode::QueryOnly { request_id: None },
            token_seq: None,
            isl_tokens: 2048,
            lora_name: None,
            expected_output_tokens: Some(256),
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids: None,
            routing_constraints: RoutingConstraints::default(),
            router_config_override: None,
            track_prefill_tokens: true,
            priority_jump: 0.0,
            strict_priority: 0,
            policy_class: None,
            session_context: None,
            overlap,
            kv_transfer_candidates: None,
            retain_kv_transfer_chain: false,
            shared_cache_hits: None,
            worker_loads: loads,
            resp_tx: None,
        };
        let policy = WorkerSelectionPolicy::reference(KvRouterConfig::default(), "prefill");
        let samples = batches((100_000 / n as usize).max(1), |_| {
            let input =
                WorkerSelectionInput::configured(black_box(&workers), black_box(&request), request.eligibility(), 16);
            black_box(policy.select_worker(input).unwrap());
        });
        vec![("", samples)]
    }
}

fn sequences_of(n: u64) -> ActiveSequencesMultiWorker<NoopSequencePublisher> {
    let ranks = (0..n).map(|w| (w, (0, 1))).collect();
    ActiveSequencesMultiWorker::new(NoopSequencePublisher, BLOCK_SIZE as usize, ranks, false, 0, "bench")
}

/// Booking and freeing, and the loads that a request would make.
pub fn active() -> impl FnMut(&str) -> Rows {
    |row| {
        let n = workers_of(row);
        let slots = sequences_of(n);
        let now = tokio::time::Instant::now();
        let mut rng = Rng(21);
        let mut request = |k: u64, worker: u64| SequenceRequest {
            request_id: format!("request-{k}"),
            token_sequence: Some(active_request(k, &mut rng)),
            track_prefill_tokens: true,
            expected_output_tokens: Some(256),
            prefill_load_hint: Some(PrefillLoadHint {
                initial_effective_prefill_tokens: 1024,
                expected_prefill_duration: None,
            }),
            worker: WorkerWithDpRank::new(worker, 0),
            lora_name: None,
        };
        for k in 0..n * 16 {
            slots.add_request(request(k, k % n), now).unwrap();
        }
        if row.starts_with("potential_loads") {
            let queries: Vec<_> = (0..64).map(|k| request(9_000_000 + k, 0).token_sequence.unwrap()).collect();
            let tokens = (0..n).map(|w| (WorkerWithDpRank::new(w, 0), 2048 - (w as usize % 32) * 64)).collect();
            let deltas = PrefillTokenDeltas::new(2048, tokens);
            let samples = batches(100, |i| {
                black_box(slots.potential_blocks_and_tokens_at::<true>(Some(&queries[i % 64]), &deltas, now));
            });
            return vec![("", samples)];
        }
        let samples = (0..4)
            .map(|round| {
                let count = 4096;
                let requests: Vec<_> =
                    (0..count).map(|k| request(10_000_000 + round * count + k, (k * 7919) % n)).collect();
                let ids: Vec<_> = requests.iter().map(|r| r.request_id.clone()).collect();
                let start = cpu();
                for r in requests {
                    slots.add_request(r, now).unwrap();
                }
                for id in &ids {
                    slots.free(id, now).unwrap();
                }
                (cpu() - start) / count as f64
            })
            .collect();
        vec![("", samples)]
    }
}

/// A request's life in the router: hashes, matches, a choice booked, the prefill's end, the end of the oldest request.
pub fn decide() -> impl FnMut(&str) -> Rows {
    let mut routers: HashMap<String, Box<dyn FnMut() -> Vec<f64>>> = HashMap::new();
    move |row| vec![("", routers.entry(row.to_string()).or_insert_with(|| Box::new(router(workers_of(row))))())]
}

fn router(n: u64) -> impl FnMut() -> Vec<f64> {
    let mut index = crate::dynamo::Crtc::new(n as usize);
    let prefixes: Vec<Vec<u32>> = (0..PREFIXES).map(|p| tokens(5000 + p, 1024)).collect();
    for (p, prefix) in prefixes.iter().enumerate() {
        let hashes = token_hashes(prefix);
        let blocks: Vec<_> = hashes.iter().copied().zip(sequences(&hashes)).collect();
        for worker in (0..n).filter(|w| (w + p as u64) % 4 == 0) {
            index.apply(router_event(Op { worker, id: 1, what: What::Store { parent: None, blocks: blocks.clone() } }));
        }
    }
    index.flush();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = KvRouterConfig::default();
    let workers: HashMap<u64, SimpleWorkerConfig> = (0..n)
        .map(|w| {
            let config = SimpleWorkerConfig {
                total_kv_blocks: Some(131_072),
                max_num_batched_tokens: Some(8192),
                ..Default::default()
            };
            (w, config)
        })
        .collect();
    let (keep, watched) = tokio::sync::watch::channel(workers);
    let scheduler = {
        let _inside = runtime.enter();
        LocalScheduler::new(
            Arc::new(sequences_of(n)),
            watched,
            PolicyProfile::synthetic(None, RouterQueuePolicy::Fcfs),
            BLOCK_SIZE,
            WorkerSelectionPolicy::reference(config.clone(), "decode"),
            None,
            None::<Arc<NoopOverlapScoresRefresh>>,
            None,
            None,
            std::time::Duration::from_secs(60),
            true,
            tokio_util::sync::CancellationToken::new(),
            "decode",
            false,
        )
    };
    let mut rng = Rng(33);
    let mut live: VecDeque<String> = VecDeque::new();
    let mut k = 0;
    let steady = n * 16;
    let count = (200_000 / n).clamp(300, 5000);
    let window = count as usize / 10;
    let mut serve = move |m: u64, samples: &mut Samples| {
        let _ = &keep; // the workers leave when it is dropped
        let prompts: Vec<Vec<u32>> = (0..m)
            .map(|i| {
                let a = rng.below(PREFIXES);
                let mut prompt = prefixes[rng.below(a + 1) as usize].clone();
                prompt.extend(tokens(1_000_000 + k + i, 1024));
                prompt
            })
            .collect();
        for some in prompts.chunks(window) {
            let work = async {
                for prompt in some {
                    let id = format!("request-{k}");
                    k += 1;
                    let hashes = compute_block_hash_for_seq(prompt, BLOCK_SIZE, BlockHashOptions::default());
                    let seqs = compute_seq_hash_for_block(&hashes);
                    let mut device = MatchDetails::new();
                    device.overlap_scores = index.find(&hashes);
                    let tiers = TieredMatchDetails { device, lower_tier: Default::default() };
                    let overlap = OverlapAnalysis::new(&config, BLOCK_SIZE, &tiers).signals();
                    let request = ScheduleRequest {
                        mode: ScheduleMode::Tracked { request_id: id.clone() },
                        token_seq: Some(seqs),
                        block_hashes: None,
                        isl_tokens: prompt.len(),
                        lora_name: None,
                        expected_output_tokens: Some(256),
                        affinity_target: None,
                        pinned_worker: None,
                        allowed_worker_ids: None,
                        routing_constraints: RoutingConstraints::default(),
                        router_config_override: None,
                        priority_jump: 0.0,
                        strict_priority: 0,
                        policy_class: None,
                        session_context: None,
                        overlap,
                        kv_transfer_candidates: None,
                        retain_kv_transfer_chain: false,
                        shared_cache_hits: None,
                    };
                    black_box(scheduler.schedule_request(request).await.unwrap());
                    scheduler.mark_prefill_completed(&id).await.unwrap();
                    live.push_back(id);
                    if live.len() > steady as usize {
                        scheduler.free(&live.pop_front().unwrap()).await.unwrap();
                    }
                }
            };
            samples.take(some.len(), || runtime.block_on(work));
        }
    };
    serve(steady, &mut Samples::default());
    move || {
        let mut samples = Samples::default();
        for _ in 0..12 {
            serve(count, &mut samples);
        }
        samples.best()
    }
}
