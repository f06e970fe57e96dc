"""KvEventPublisher on ZeroMQ: routers, a plain subscriber and relays hold what was published; wrong use raises."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import zmq

from dynamo_go import (
    CannotConnect,
    Closed,
    DistributedRuntime,
    EventRefused,
    InvalidArgument,
    KvEventPublisher,
    Router,
    compute_block_hash_for_seq,
)
from dynamo_go.mocker import Mocker

ANY = "tcp://127.0.0.1:0"
WORKER = 2**64 - 7
B = 4
PROMPT = list(range(1, 17))  # four blocks
NAMES = [11, -22, 33, 44]
WRONG_TEXTS: list[Any] = [0, False, [], b""]


def make(endpoint: str = ANY, **more: Any) -> KvEventPublisher:
    keywords: dict[str, Any] = {"worker_id": WORKER, "kv_block_size": B, "replay_endpoint": ANY, "query_endpoint": ANY}
    return KvEventPublisher(endpoint, **{**keywords, **more})


def store(publisher: KvEventPublisher, tokens: Sequence[int], names: Sequence[int], **more: Any) -> None:
    publisher.publish_stored(tokens, [B] * len(names), names, **more)


def follow(publisher: KvEventPublisher, query: bool = True) -> Router:
    """A router that follows the publisher."""
    info = publisher.info()
    router = Router(B)
    rank = info["dp_rank"]
    sockets: dict[str, Any] = {"query": {rank: info["query"]}} if query else {"replay": {rank: info["replay"]}}
    router.add_worker(WORKER, dp_start=rank, kv_events={rank: info["kv_events"]}, **sockets)
    return router


def until(condition: Callable[[], bool], what: str = "") -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.005)


def overlap(router: Router, tokens: Sequence[int] = PROMPT, **more: Any) -> int:
    return router.best_worker(tokens, **more)[2]


def knows(router: Router, blocks: int, tokens: Sequence[int] = PROMPT, **more: Any) -> None:
    until(lambda: overlap(router, tokens, **more) == blocks, f"{blocks} blocks")


@pytest.mark.parametrize("query", [True, False])
def test_routers_hold_what_was_published(query: bool) -> None:
    publisher = make(dp_rank=3)
    store(publisher, PROMPT[:12], NAMES[:3])
    early = follow(publisher, query)
    knows(early, 3)
    store(publisher, PROMPT[12:], NAMES[3:], parent_hash=NAMES[2])
    knows(early, 4)
    store(publisher, PROMPT[:8], NAMES[:2])  # second copies
    publisher.publish_removed([NAMES[1], 99])
    publisher.publish_removed([NAMES[3]])
    late = follow(publisher, query)
    for router in (early, late):
        knows(router, 3)
    publisher.publish_batch(
        [
            {"type": "removed", "block_hashes": [NAMES[1]]},
            {"type": "stored", "token_ids": [7] * B, "num_block_tokens": [B], "block_hashes": [50]},
        ]
    )
    for router in (early, late):
        knows(router, 1)
        knows(router, 1, [7] * B)
    publisher.publish_cleared()
    for router in (early, late):
        knows(router, 0)
    info = publisher.info()
    assert (info["dp_rank"], info["blocks"], info["stored"], info["duplicate_stores"]) == (3, 0, 5, 2)
    assert publisher.unknown_removals == info["unknown_removals"] == 1


def test_what_names_a_block_reaches_routers() -> None:
    publisher = make()
    router = follow(publisher)
    infos = [None, {"mm_objects": [{"mm_hash": 77, "offsets": [[0, 2]]}]}]
    store(publisher, PROMPT[:4], [1], lora_name="adapter")
    store(publisher, PROMPT[:4], [2], cache_salt="salt")
    store(publisher, PROMPT[:8], [3, 4], block_mm_infos=infos)
    knows(router, 1, PROMPT[:4], lora_name="adapter")
    knows(router, 1, PROMPT[:4], cache_namespace="salt")
    knows(router, 2, PROMPT[:8], block_mm_infos=infos)
    assert overlap(router, PROMPT[:8]) == 1
    publisher.publish_stored(PROMPT[:9], [B, B], [5, 6], is_eagle=True)
    want = compute_block_hash_for_seq(PROMPT[:9], B, is_eagle=True)
    until(lambda: all(str(h) in str(router.dump_events()) for h in want), "EAGLE windows")


def test_a_restarted_publisher_starts_anew() -> None:
    publisher = make()
    store(publisher, PROMPT, NAMES)
    router = follow(publisher)
    knows(router, 4)
    info = publisher.info()
    publisher.shutdown()
    publisher.shutdown()
    store(publisher, PROMPT, NAMES)  # says nothing, as in Dynamo
    publisher.publish_removed([1])
    publisher.publish_cleared()
    with pytest.raises(Closed):
        publisher.info()
    publisher = make(info["kv_events"], replay_endpoint=info["replay"], query_endpoint=info["query"])
    store(publisher, PROMPT[:4], [9])
    knows(router, 1)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"worker_id": None}, InvalidArgument),
        ({"worker_id": -1}, InvalidArgument),
        ({"worker_id": "7"}, TypeError),
        ({"kv_block_size": 0}, InvalidArgument),
        ({"kv_block_size": -4}, InvalidArgument),
        ({"kv_block_size": 1 << 21}, InvalidArgument),
        ({"dp_rank": -1}, InvalidArgument),
        ({"dp_rank": 1 << 32}, InvalidArgument),
        ({"buffer_steps": 0}, InvalidArgument),
        ({"endpoint": "nonsense"}, InvalidArgument),
        ({"endpoint": 5}, TypeError),
        ({"endpoint": "ipc:///nowhere/x"}, CannotConnect),
        ({"endpoint": "tcp://127.0.0.1:39999", "query_endpoint": "tcp://127.0.0.1:39999"}, InvalidArgument),
        ({"zmq_topic": "t"}, InvalidArgument),
        ({"zmq_replay_endpoint": ANY}, InvalidArgument),
        ({"zmq_endpoint": "tcp://*:5557"}, InvalidArgument),
        ({"image_token_id": 3}, NotImplementedError),
        *(
            ({keyword: value}, TypeError)
            for keyword in (
                "topic",
                "replay_endpoint",
                "query_endpoint",
                "zmq_topic",
                "zmq_endpoint",
                "zmq_replay_endpoint",
            )
            for value in WRONG_TEXTS
        ),
        ({"topic": None}, TypeError),
        ({"topic": "\ud800"}, InvalidArgument),
        ({"endpoint": "ipc:///tmp/\ud800"}, InvalidArgument),
        ({"enable_local_indexer": 1}, TypeError),
        ({"enable_local_indexer": None}, TypeError),
        ({"batching_timeout_ms": "5"}, TypeError),
        ({"batching_timeout_ms": -1}, InvalidArgument),
    ],
)
def test_wrong_construction(keywords: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(**keywords)


def test_wrong_use_raises_at_the_call() -> None:
    publisher = make()
    for error, arguments in [
        (InvalidArgument, (PROMPT[:4], [B], [1, 2])),
        (InvalidArgument, (PROMPT[:4], [B + 1], [1])),
        (InvalidArgument, (PROMPT[:3], [B], [1])),
        (InvalidArgument, (PROMPT[:5], [B], [1])),
        (OverflowError, (PROMPT[:4], [B], [1 << 64])),
        (OverflowError, (PROMPT[:4], [B], [-(1 << 63) - 1])),
        (TypeError, (PROMPT[:4], [B], ["1"])),
        (EventRefused, (PROMPT[:4], [B], [1], 77)),
        (EventRefused, (PROMPT[:8], [B, B], [1, 1])),
        (EventRefused, (PROMPT[:4], [B], [1], 1)),
        (InvalidArgument, (PROMPT[:4], [B], [1], None, [None, None])),
        (InvalidArgument, ([-1] * 4, [B], [1])),
    ]:
        with pytest.raises(error):
            publisher.publish_stored(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is_eagle: expected bool, got str"):
        publisher.publish_stored(PROMPT[:5], [B], [1], is_eagle="x")  # type: ignore[arg-type]
    with pytest.raises(EventRefused):
        publisher.publish_batch(
            [
                {
                    "type": "stored",
                    "token_ids": [1] * B,
                    "num_block_tokens": [B],
                    "block_hashes": [1],
                    "parent_hash": 5,
                },
                {"type": "stored", "token_ids": [2] * B, "num_block_tokens": [B], "block_hashes": [2]},
            ]
        )
    with pytest.raises(InvalidArgument, match="unknown variant"):
        publisher.publish_batch([{"type": "moved"}])
    assert (publisher.info()["stored"], publisher.info()["messages"]) == (1, 2)
    store(publisher, PROMPT[:4], [-(1 << 63)])
    store(publisher, PROMPT[:4], [(1 << 64) - 1])
    publisher.publish_removed([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": ["a"] * B},
        {"token_ids": [-1] * B},
        {"token_ids": [1.0] * B},
        {"block_hashes": ["a"]},
        {"parent_hash": "a"},
        {"lora_name": 5},
        {"cache_salt": b"x"},
        {"is_eagle": 0},
        {"block_mm_infos": [5]},
    ],
)
def test_a_batch_with_a_wrong_value_is_not_published(wrong: dict[str, Any]) -> None:
    publisher = make()
    store(publisher, PROMPT[:4], [1])
    before = publisher.info()
    stored = {"type": "stored", "token_ids": [2] * B, "num_block_tokens": [B], "block_hashes": [2]}
    with pytest.raises((TypeError, InvalidArgument)):
        publisher.publish_batch([{"type": "removed", "block_hashes": [1]}, {**stored, **wrong}])
    assert publisher.info() == before


def test_shutdown_while_others_publish() -> None:
    for _ in range(20):
        publisher = make()
        faults: list[BaseException] = []

        def work(n: int, publisher: KvEventPublisher = publisher, faults: list[BaseException] = faults) -> None:
            try:
                for i in range(300):
                    store(publisher, [n, i, 0, 0], [n * 1000 + i])
                    publisher.publish_removed([5])
                    _ = publisher.unknown_removals
                publisher.publish_cleared()
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        until(lambda publisher=publisher: publisher.unknown_removals > 3)  # type: ignore[misc]
        publisher.shutdown()
        for thread in threads:
            thread.join()
        assert faults == []
        assert publisher.unknown_removals > 3


def test_a_publisher_of_a_runtime_takes_no_addresses() -> None:
    async def main() -> None:
        endpoint = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp").endpoint("a.b.c")
        publisher = KvEventPublisher(endpoint, kv_block_size=B)
        assert publisher.info()["kv_events"] == ""
        for keyword in ("replay_endpoint", "query_endpoint"):
            with pytest.raises(NotImplementedError, match=keyword):
                KvEventPublisher(endpoint, kv_block_size=B, **{keyword: ANY})  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_relay_passes_on_what_an_engine_publishes() -> None:
    with Mocker(block_size=B, dp_rank=2, blocks=64) as engine:
        relay = make(
            dp_rank=2, zmq_endpoint=engine.info["kv_events"], zmq_replay_endpoint=engine.info["replay"], zmq_topic=""
        )
        router = follow(relay)
        direct = Router(B)
        direct.add_worker(
            WORKER, dp_start=2, kv_events={2: engine.info["kv_events"]}, replay={2: engine.info["replay"]}
        )
        for prompt in (PROMPT, PROMPT[:8] + [90] * 8):
            complete(engine.info["http"], prompt)
            knows(direct, 4, prompt)
            knows(router, 4, prompt)
        with pytest.raises(InvalidArgument, match="engine"):
            store(relay, PROMPT[:4], [1])
        with pytest.raises(InvalidArgument, match="engine"):
            relay.publish_removed([1])
        with pytest.raises(InvalidArgument, match="engine"):
            relay.publish_cleared()
        until(lambda: relay.info()["engine"]["state"] == "exact", "exact")
        assert relay.info()["stored"] >= 6


def complete(address: str, prompt: Sequence[int]) -> None:
    """Have the engine compute a prompt."""
    body = json.dumps({"prompt": list(prompt), "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://{address.removeprefix('http://')}/v1/completions", body)
    urllib.request.urlopen(request).read()


def test_many_threads_publish() -> None:
    publisher = make()
    router = follow(publisher)

    def work(n: int) -> None:
        for i in range(100):
            store(publisher, [n, i, 0, 0], [n * 1000 + i])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.info()["stored"] == 400
    until(lambda: str(router.dump_events()).count("tokens_hash") == 400, "all blocks")


def test_sockets_close_with_the_publisher() -> None:
    publisher = make()
    address = publisher.info()["kv_events"]
    with pytest.raises(CannotConnect):
        make(address)
    del publisher
    gc.collect()
    make(address)


def test_a_forked_child_is_refused() -> None:
    publisher = make()
    child = os.fork()
    if child == 0:
        try:
            publisher.publish_cleared()
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish_cleared()


# -- a subscriber that knows the engines' protocol and nothing of this library


def replay(context: zmq.Context[Any], address: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Ask for everything from a number on: frames delimiter, topic, number, payload; the end has no payload."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(address)
        dealer.send_multipart([b"", struct.pack(">Q", start)])
        while True:
            frames = dealer.recv_multipart()
            if not frames[-1]:
                return
            yield struct.unpack(">Q", frames[-2])[0], frames[-1]


def test_a_plain_subscriber_loses_nothing() -> None:
    batches = 20_000
    publisher = make(buffer_steps=batches + 1, topic="kv@pod")
    info = publisher.info()
    context: zmq.Context[Any] = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVHWM, 0)
    subscriber.setsockopt(zmq.RCVTIMEO, 20_000)
    subscriber.connect(info["kv_events"])
    subscriber.subscribe(b"kv@")
    held: set[int] = set()
    numbers: list[int] = []
    live = dropped = 0

    def take(number: int, payload: bytes) -> None:
        if number != len(numbers):
            assert number < len(numbers), "a hole"
            return
        numbers.append(number)
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0 and len(events) == 1
        event = events[0]
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
            assert event["parent_block_hash"] is None or event["parent_block_hash"] in held
            held.update(event["block_hashes"])
        elif event["type"] == "BlockRemoved":
            held.difference_update(event["block_hashes"])
        else:
            assert event["type"] == "AllBlocksCleared"
            held.clear()

    def fill() -> None:
        for number, payload in replay(context, info["replay"], len(numbers)):
            take(number, payload)

    def publish() -> None:
        for i in range(batches):
            if i % 5 == 4:
                publisher.publish_removed([i - 2])
            else:
                store(publisher, [i, 0, 0, 0], [i], parent_hash=i - 1 if i % 5 == 1 else None)

    fill()  # the first message came before anybody subscribed
    thread = threading.Thread(target=publish)
    thread.start()
    while len(numbers) < batches + 1 - 100:  # the end of the stream may be among what is dropped
        topic, number_bytes, payload = subscriber.recv_multipart()
        assert topic == b"kv@pod"
        (number,) = struct.unpack(">Q", number_bytes)
        live += 1
        if number * 2654435761 % 100 < 3:
            dropped += 1
            continue
        if number > len(numbers):
            fill()
        take(number, payload)
    thread.join()
    fill()
    assert numbers == list(range(batches + 1))
    assert live > batches / 10  # a replay may be ahead of the live stream, which then need not be read on
    assert dropped > live / 50
    assert held == {i for i in range(batches) if i % 5 != 4 and i % 5 != 2}
    assert len(held) == publisher.info()["blocks"]
    context.destroy(linger=0)
