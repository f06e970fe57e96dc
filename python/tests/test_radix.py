"""RadixTree: the index by itself. What Dynamo 1.6.1 answers was looked up by running it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

import dynamo_go
from dynamo_go import Closed, EventRefused, InvalidArgument, OverlapScores, RadixTree, Router


def store(tree: RadixTree, worker: int, blocks: list[int], dp_rank: int = 0, parent: int | None = None) -> None:
    """Store blocks named 1, 2 ... with the hashes 1001, 1002 ..."""
    stored = [{"block_hash": n, "tokens_hash": n + 1000} for n in blocks]
    data = {"stored": {"parent_hash": parent, "blocks": stored}}
    tree.apply_event(worker, {"event_id": 0, "dp_rank": dp_rank, "data": data})


def remove(tree: RadixTree, worker: int, blocks: list[int]) -> None:
    tree.apply_event(worker, json.dumps({"event_id": 0, "data": {"removed": {"block_hashes": blocks}}}))


def found(tree: RadixTree, *blocks: int) -> dict[tuple[int, int], int]:
    return tree.find_matches([n + 1000 for n in blocks]).scores


def filled() -> RadixTree:
    tree = RadixTree()
    store(tree, 7, [1, 2, 3])
    store(tree, 7, [1, 2], dp_rank=1)
    store(tree, 8, [1, 2, 3, 4])
    return tree


def test_matches_are_counted_by_rank() -> None:
    tree = filled()
    assert found(tree, 1, 2, 3, 4) == {(7, 0): 3, (7, 1): 2, (8, 0): 4}
    assert tree.find_matches([1001, 1002], early_exit=True).scores == {(7, 0): 2, (7, 1): 2, (8, 0): 2}
    assert found(tree) == found(tree, 9) == found(tree, 2, 3) == {}
    assert (
        tree.find_matches(iter([1001])).scores == tree.find_matches((1001,)).scores == {(7, 0): 1, (7, 1): 1, (8, 0): 1}
    )
    scores = tree.find_matches([1004])
    assert isinstance(scores, OverlapScores)
    assert scores.frequencies == []
    assert repr(scores) == "OverlapScores({})"


def test_clearing_and_removing() -> None:
    tree = filled()
    tree.apply_event(7, b'{"event_id": 1, "data": "cleared"}')
    assert found(tree, 1, 2, 3, 4) == {(7, 1): 2, (8, 0): 4}
    tree.clear_all_blocks(7)
    assert found(tree, 1, 2, 3, 4) == {(8, 0): 4}
    store(tree, 7, [1])
    store(tree, 7, [1, 2])
    remove(tree, 7, [1])
    assert found(tree, 1, 2) == {(8, 0): 2}
    tree.remove_worker(8)
    tree.remove_worker(8)
    tree.clear_all_blocks(99)
    assert found(tree, 1, 2) == {}


def test_what_contradicts_is_refused() -> None:
    tree = filled()
    with pytest.raises(RuntimeError, match="parent"):
        store(tree, 7, [5], parent=77)
    with pytest.raises(EventRefused, match="1 of 2"):
        remove(tree, 7, [99, 3])
    assert found(tree, 1, 2, 3) == {(7, 0): 2, (7, 1): 2, (8, 0): 3}
    with pytest.raises(ValueError, match="storage_tier is disk"):
        tree.apply_event(7, {"event_id": 1, "storage_tier": "disk", "data": {"stored": {"blocks": []}}})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.apply_event(-1, b"{}"), InvalidArgument, "worker_id=-1"),
        (lambda t: t.apply_event("7", b"{}"), TypeError, "worker_id: expected int, got str"),
        (lambda t: t.apply_event(7, b"{"), ValueError, "event"),
        (lambda t: t.apply_event(7, 5), TypeError, "kv_cache_event: expected JSON"),
        (lambda t: t.find_matches([1, -2]), InvalidArgument, "sequence=-2"),
        (lambda t: t.find_matches([2**64]), InvalidArgument, "sequence=18446744073709551616"),
        (lambda t: t.find_matches("12"), TypeError, "sequence: expected an iterable of ints, got str"),
        (lambda t: t.find_matches(None), TypeError, "sequence: expected an iterable of ints, got NoneType"),
        (lambda t: t.find_matches([1.5]), TypeError, "sequence: expected int, got float"),
        (lambda t: t.remove_worker(2**64), InvalidArgument, "worker_id=18446744073709551616"),
        (lambda t: t.clear_all_blocks(None), TypeError, "worker_id: expected int, got NoneType"),
        (lambda t: RadixTree(1), TypeError, "argument"),  # type: ignore[call-arg]
        (lambda t: dynamo_go._native.RadixTree(1), TypeError, "argument"),  # type: ignore[call-arg]
    ],
)
def test_wrong_values_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(filled())


@pytest.mark.parametrize("value", [0, 1, 2**30 - 1, 2**30, 2**60 - 1, 2**60, 2**63, 2**64 - 1, 0xF123456789ABCDEF])
def test_hashes_and_ids_keep_all_64_bits(value: int) -> None:
    tree = RadixTree()
    block = {"block_hash": value, "tokens_hash": value}
    tree.apply_event(value, {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": [block]}}})
    assert tree.find_matches([value]).scores == {(value, 0): 1}
    assert tree.find_matches([value ^ 1]).scores == {}
    event = json.loads(tree.dump_tree_as_events()[0])
    assert event["worker_id"] == value
    assert event["event"]["data"]["stored"]["blocks"][0]["tokens_hash"] == value


def test_dump_fills_another_tree_and_a_router() -> None:
    tree = filled()
    lines = tree.dump_tree_as_events()
    assert [json.loads(line)["event"]["event_id"] for line in lines] == [0, 1, 2]
    again = RadixTree()
    for line in lines:
        event = json.loads(line)
        again.apply_event(event["worker_id"], event["event"])
    assert found(again, 1, 2, 3, 4) == found(tree, 1, 2, 3, 4)
    with Router(16) as router:
        router.add_worker(7, dp_size=2)
        router.add_worker(8)
        router.load_events("[" + ",".join(lines) + "]")
        assert router.stats()["blocks"] == 4


def test_more_ranks_than_the_extension_has_room_for() -> None:
    tree = RadixTree()
    for worker in range(200):
        store(tree, worker, [1])
    assert found(tree, 1) == {(worker, 0): 1 for worker in range(200)}


def test_closing() -> None:
    with RadixTree() as tree:
        store(tree, 7, [1])
    tree.close()
    with pytest.raises(Closed):
        found(tree, 1)
    with pytest.raises(Closed):
        tree.dump_tree_as_events()


def test_threads_share_a_tree() -> None:
    tree = RadixTree()

    def work(worker: int) -> None:
        for _ in range(200):
            store(tree, worker, [1, 2])
            assert found(tree, 1, 2)[worker, 0] == 2
            tree.clear_all_blocks(worker)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(tree, 1, 2) == {}
