"""A worker and a client as programs for Dynamo have them: life.py PREFIX FD, where PREFIX.llm and PREFIX.runtime are imported.

Everything that is told goes to the file descriptor FD, a JSON line each: Dynamo logs to the others.
"""

import asyncio
import importlib
import json
import os
import sys

llm = importlib.import_module(sys.argv[1] + ".llm")
runtime_module = importlib.import_module(sys.argv[1] + ".runtime")

BLOCK = 16
out = os.fdopen(int(sys.argv[2]), "w")
ids = {}


def plain(value):
    """Give a value as both can be compared: worker ids by their order, futures and classes of errors by what they are."""
    if isinstance(value, BaseException):
        kinds = (ValueError, TypeError, RuntimeError, asyncio.CancelledError, Exception)
        return "error " + next(kind.__name__ for kind in kinds if isinstance(value, kind))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in ("timing", "event_id")}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, int) and value > 1 << 40:
        return "id %d" % ids.setdefault(value, len(ids))
    return value


def tell(step, value):
    """Print what a step gave."""
    print(json.dumps([step, plain(value)]), file=out, flush=True)


async def settled(awaitable):
    """Give the result of an awaitable, or its error."""
    try:
        return await awaitable
    except Exception as error:
        return error


def called(function, *arguments, **keywords):
    """Give what a call gives at once, or its error."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return error


async def items(awaitable, stop_after=None, context=None):
    """Give all items of a stream; an error is the last."""
    found = []
    try:
        async for item in await awaitable:
            found.append(item.data() if hasattr(item, "data") else item)
            if stop_after == len(found):
                if context is None:
                    break
                context.stop_generating()
    except Exception as error:
        found.append(error)
    return found


async def worker(runtime, events, stopped):
    """Serve, and publish what the cache holds."""
    endpoint = runtime.endpoint("wire.backend.generate")
    publisher = llm.KvEventPublisher(endpoint, kv_block_size=BLOCK, dp_rank=0, enable_local_indexer=True)
    metrics = llm.WorkerMetricsPublisher()
    tell("create_endpoint", await metrics.create_endpoint(endpoint))
    events.append(publisher)

    async def handler(request, context):
        model = request.get("model", "")
        if model == "err0":
            raise ValueError("boom before first item")
        if model == "slow":
            for n in range(400):
                if context.is_stopped():
                    stopped.set()
                    return
                yield {"token_ids": [1000 + n]}
                await asyncio.sleep(0.005)
        for n in range(3):
            item = {"token_ids": [1000 + n]}
            if n == 2:
                item["finish_reason"] = "length"
            yield item
            if model == "errmid" and n == 0:
                raise RuntimeError("boom after first item")

    config = llm.ModelRuntimeConfig()
    config.total_kv_blocks = 1000
    config.max_num_seqs = 64
    config.max_num_batched_tokens = 8192
    config.enable_local_indexer = True
    config.taints = {"gpu"}
    given = await llm.register_model(
        llm.ModelInput.Tokens,
        llm.ModelType.Chat | llm.ModelType.Completions,
        endpoint,
        "fake-model",
        "fake-model",
        worker_type=llm.WorkerType.Aggregated,
        kv_cache_block_size=BLOCK,
        runtime_config=config,
        skip_model_assets=True,
    )
    tell("register_model", given)
    return asyncio.ensure_future(endpoint.serve_endpoint(handler, graceful_shutdown=False)), metrics, endpoint


def stored(n, blocks, parent=None, rank=0):
    """Give an event: blocks of (name, content hash) were stored."""
    rows = [{"block_hash": name, "tokens_hash": content} for name, content in blocks]
    data = {"stored": {"parent_hash": parent, "blocks": rows}}
    return json.dumps({"event_id": n, "data": data, "dp_rank": rank}).encode()


def tree():
    """Give what an index says of some events, and what it refuses."""
    made = llm.RadixTree()

    def scores(*content):
        found = made.find_matches(list(content))
        return [sorted([*rank, depth] for rank, depth in found.scores.items()), found.frequencies]

    told = [
        made.apply_event(7, stored(1, [(101, 1), (102, 2), (103, 3)])),
        made.apply_event(8, stored(1, [(101, 1), (102, 2)], rank=1)),
        made.apply_event(worker_id=8, kv_cache_event_bytes=stored(2, [(203, 9)], parent=102, rank=1)),
        scores(1, 2, 3),
        scores(1, 2, 9),
        scores(4),
        made.find_matches(sequence=[1, 2], early_exit=False).scores == {(7, 0): 2, (8, 1): 2},
        called(made.apply_event, 7, stored(2, [(5, 5)], parent=404)),
        called(made.apply_event, 7, b"nonsense"),
        called(made.apply_event, 7, b'{"event_id": 3, "data": {"removed": {"block_hashes": [404]}}, "dp_rank": 0}'),
        made.apply_event(7, b'{"event_id": 4, "data": {"removed": {"block_hashes": [103]}}, "dp_rank": 0}'),
        scores(1, 2, 3),
        len(made.dump_tree_as_events()) > 1,
        made.clear_all_blocks(7),
        scores(1, 2, 3),
        made.remove_worker(8),
        scores(1, 2, 3),
        made.remove_worker(404),
        made.clear_all_blocks(404),
        made.dump_tree_as_events(),
    ]
    return told


async def until(ask, wanted):
    """Ask until the answer is there: events need a moment."""
    for _ in range(2000):
        got = await ask()
        if wanted(got):
            return got
        await asyncio.sleep(0.005)
    raise SystemExit(f"it does not come: {got}")


async def main():
    """Go through the life of some requests."""
    runtime = runtime_module.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    events, stopped = [], asyncio.Event()
    _, metrics, served = await worker(runtime, events, stopped)
    (publisher,) = events
    endpoint = runtime.endpoint("wire.backend.generate")
    client = await endpoint.client()
    (instance,) = await client.wait_for_instances()
    tell("ids", [instance, client.instance_ids(), [each.instance_id for each in client.instances()]])
    tell("connection_id", served.connection_id() == instance)

    router = llm.KvRouter(endpoint, BLOCK, llm.KvRouterConfig(router_temperature=0.0))
    tokens = list(range(64))
    await until(lambda: router.get_potential_loads([]), bool)
    tell("best_worker", await router.best_worker(tokens))

    tell("published", publisher.publish_stored(tokens[:32], [16, 16], [1111, -2222]))
    tell("cached", await until(lambda: router.best_worker(tokens), lambda choice: choice[2] == 2))
    overlap = await router.get_overlap_scores(tokens)
    tell("overlap", {key: overlap[key] for key in ("block_size", "num_blocks")})
    tell("overlap of the worker", overlap["workers"])
    tell("dump", json.loads(await router.dump_events()))
    tell("removed", publisher.publish_removed([-2222]))
    tell("less cached", await until(lambda: router.best_worker(tokens), lambda choice: choice[2] == 1))

    tell("booked", await router.best_worker(tokens, request_id="r1"))
    tell("twice", await settled(router.best_worker(tokens, request_id="r1")))
    tell("loads", await router.get_potential_loads(tokens))
    tell("marked", await router.mark_prefill_complete("r1"))
    tell("marked again", await router.mark_prefill_complete("r1"))
    tell("loads later", await router.get_potential_loads([]))
    tell("freed", await router.free("r1"))
    tell("freed again", await settled(router.free("r1")))
    tell("never booked", await settled(router.mark_prefill_complete("nope")))

    tell("generate", await items(router.generate(tokens, "ok", stop_conditions={"max_tokens": 3})))
    tell("generate, pinned", await items(router.generate(tokens, "ok", worker_id=instance)))
    tell("from request", await items(router.generate_from_request({"token_ids": tokens, "model": "ok"})))
    tell("query", await items(router.generate_from_request({"token_ids": [1], "annotations": ["query_instance_id:"]})))
    tell("unknown worker", await items(router.generate(tokens, "ok", worker_id=5)))
    tell("err0", await items(router.generate(tokens, "err0")))
    tell("errmid", await items(router.generate(tokens, "errmid")))
    tell("slow", len(await items(router.generate(tokens, "slow"), stop_after=3)))
    await asyncio.wait_for(stopped.wait(), 20)
    loads = await until(lambda: router.get_potential_loads([]), lambda rows: rows[0]["active_requests"] == 0)
    tell("all freed", loads)

    request = {"model": "ok", "token_ids": [1]}
    tell("direct", await items(client.direct(request, instance)))
    tell("direct, plain", await items(client.direct(request, instance, annotated=False)))
    tell("round_robin", await items(client.round_robin(request)))
    tell("random", await items(client.random(request)))
    tell("client generate", await items(client.generate(request)))
    tell("direct to nobody", await settled(client.direct(request, 5)))
    tell("direct, err0", await items(client.direct({"model": "err0"}, instance)))
    tell("direct, errmid", await items(client.direct({"model": "errmid"}, instance)))
    context = runtime_module.Context("mine", metadata={"tenant": "a"})
    tell("context", [context.id(), dict(context.metadata.items()), context.is_stopped(), context.is_killed()])
    stopped.clear()
    await items(client.direct({"model": "slow"}, instance, context=context), 3, context)
    await asyncio.wait_for(stopped.wait(), 20)
    tell("stopped", [context.is_stopped(), context.trace_id, context.trace_headers()])

    constraint = llm.RoutingConstraints({"gpu"}, {"gpu": 1.0})
    tell("taint", await router.best_worker(tokens, routing_constraints=constraint))
    tell("no taint", await settled(router.best_worker(tokens, routing_constraints=llm.RoutingConstraints({"none"}))))
    tell("update_model_taints", await llm.update_model_taints(served, {"none"}))

    tell("wrong", [
        called(router.best_worker, [1.5]),
        called(router.best_worker, "text"),
        called(router.best_worker, [1], request_id=5),
        called(router.best_worker, [1], routing_constraints={}),
        called(router.generate, [1], "m", response_buffer_size=-1),
        called(publisher.publish_batch, [{"type": "x"}]),
        called(publisher.publish_batch, []),
        called(llm.KvEventPublisher, endpoint) is None,
        called(llm.KvRouter, endpoint, BLOCK, {}),
        called(llm.KvRouterConfig, router_temperature=-1.0),
        called(llm.KvRouterConfig, use_kv_events=1),
        called(llm.KvRouterConfig.from_json, '{"nonsense": 1}'),
        called(llm.compute_block_hash_for_seq, [1], 0),
        called(llm.LoadThresholdConfig, active_decode_blocks_threshold=2.0),
        called(llm.RouterConfig, "kv"),
        called(llm.RouterConfig, llm.RouterMode.KV, None, 2.0),
        called(llm.RouterConfig, llm.RouterMode.KV, session_affinity_mode="x"),
        called(llm.RouterConfig, llm.RouterMode.KV, session_affinity_ttl_secs=0),
        called(runtime.endpoint, "a.b"),
        called(runtime_module.DistributedRuntime, asyncio.get_running_loop(), "bogus", "tcp"),
        called(runtime_module.DistributedRuntime, asyncio.get_running_loop(), "mem", "tcp", event_plane="bogus"),
        called(metrics.publish, 0),
        called(llm.exceptions.HttpError, 700, "m"),
    ])
    tell("metrics", metrics.publish(0, active_decode_blocks=7, kv_used_blocks=9))

    config = llm.KvRouterConfig(overlap_score_credit=0.5)
    other = config.with_overrides(prefill_load_scale=2.0)
    tell("config", [other.overlap_score_credit, other.prefill_load_scale, config.copy().prefill_load_scale])
    chosen = llm.RouterConfig(llm.RouterMode.KV, config)
    tell("modes", [[name, int(getattr(llm.RouterMode, name))] for name in dir(llm.RouterMode) if name[0].isupper()])
    tell("router config", [repr(chosen.router_mode), chosen.kv_router_config.overlap_score_credit])
    tell("enums", [int(llm.ModelInput.Tokens), int(llm.WorkerType.Aggregated), llm.ModelInput.Text == 1])
    tell("types", [llm.ModelType.Chat.supports_chat(), (llm.ModelType.Chat | llm.ModelType.Rerank).supports_rerank()])
    described = llm.ModelRuntimeConfig()
    described.set_engine_specific("name", '"value"')
    tell("described", [described.get_engine_specific("name"), described.runtime_data, described.context_length])
    hashes = llm.compute_block_hash_for_seq(list(range(48)), 16, lora_name="a", cache_namespace="b")
    tell("hashes", [str(each) for each in hashes])
    tell("tree", tree())
    error = llm.exceptions.HttpError(418, "teapot")
    tell("http", [error.code, error.message, str(error)])

    @runtime_module.dynamo_endpoint(str, str)
    async def words(request):
        for word in request.split():
            yield word

    tell("dynamo_endpoint", [word async for word in words("a b c")])

    async def doubled(request, *, context):
        return [2 * request["n"], context.id() != ""]

    unary = runtime.endpoint("wire.backend.unary")
    asyncio.ensure_future(runtime_module.serve_unary_endpoint(unary, doubled))
    caller = await unary.client()
    await caller.wait_for_instances()
    tell("unary", await runtime_module.UnaryClient(caller).complete({"n": 21}))

    tell("taken back", await served.unregister_endpoint_instance())
    await until(lambda: settled(router.best_worker(tokens)), lambda got: isinstance(got, Exception))
    tell("given again", await served.register_endpoint_instance())
    await until(lambda: settled(router.best_worker(tokens)), lambda got: not isinstance(got, Exception))
    tell("unregister_model", await llm.unregister_model(served))
    await until(lambda: settled(router.best_worker(tokens)), lambda got: isinstance(got, Exception))
    tell("shutdown", runtime.shutdown())


@runtime_module.dynamo_worker()
async def decorated(runtime, *arguments, **keywords):
    """Tell what a decorated worker gets."""
    tell("decorated", [type(runtime).__name__, arguments, keywords])


os.environ["DYN_DISCOVERY_BACKEND"] = "mem"
asyncio.run(main())
tell("dynamo_worker", asyncio.run(decorated(1, two=2)))
out.flush()
os._exit(0)  # Dynamo's runtime takes its time
