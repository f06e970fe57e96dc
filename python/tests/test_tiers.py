"""Lower tiers: pinned host memory, disk and external go on where a rank's device match ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_router import store

from dynamo_go import InvalidArgument, KvRouterConfig, Router, compute_block_hash_for_seq

PROMPT = list(range(40))


def store_in(router: Router, tier: str, worker_id: int, start: int, stop: int) -> None:
    """Store blocks of the prompt in a tier, named 1, 2, ..."""
    hashes = compute_block_hash_for_seq(PROMPT, 4)
    blocks = [{"block_hash": i + 1, "tokens_hash": hashes[i]} for i in range(start, stop)]
    data = {"stored": {"parent_hash": start or None, "blocks": blocks}}
    router.apply_event(worker_id, {"event_id": 0, "storage_tier": tier, "data": data})


def rows(router: Router) -> list[tuple[int, int, int]]:
    """(device, host, disk) of each worker, cumulative."""
    scores = router.get_overlap_scores(PROMPT)["workers"]
    return [(row["device_blocks"], row["host_pinned_blocks"], row["disk_blocks"]) for row in scores]


def filled(**config: Any) -> Router:
    router = Router(4, KvRouterConfig(**config), seed=1)
    for worker_id in (1, 2, 3):
        router.add_worker(worker_id)
    store(router, 1, PROMPT[:12])
    store_in(router, "host_pinned", 1, 3, 5)
    store_in(router, "disk", 1, 5, 6)
    store_in(router, "external", 1, 6, 8)
    store_in(router, "host_pinned", 2, 0, 4)
    store_in(router, "disk", 3, 0, 10)
    return router


def test_they_go_on_where_the_device_ends(tmp_path: Path) -> None:
    with filled() as router:
        assert rows(router) == [(3, 5, 8), (0, 4, 4), (0, 0, 10)]
        assert router.best_worker(PROMPT) == (1, 0, 3)
        loads = {row["worker_id"]: row["potential_prefill_tokens"] for row in router.get_potential_loads(PROMPT)}
        assert loads == {1: 40 - 21, 2: 40 - 12, 3: 40 - 10}
        stats = router.stats()
        assert (stats["host_pinned_blocks"], stats["disk_blocks"], stats["external_blocks"]) == (6, 11, 2)
        dump = router.dump_events()
        assert {event["storage_tier"] for event in json.loads(dump)} == {"device", "host_pinned", "disk", "external"}
        router.save(tmp_path / "snapshot")
        with Router(4) as other:
            for worker_id in (1, 2, 3):
                other.add_worker(worker_id)
            other.load_events(dump)
            assert rows(other) == rows(router)
            other.load_events(dump)  # each block has one reference all the same
            removed = {"event_id": 0, "storage_tier": "disk", "data": {"removed": {"block_hashes": [1]}}}
            other.apply_event(3, removed)
            assert rows(other)[2] == (0, 0, 0)
        with Router(4) as other:
            assert other.load(tmp_path / "snapshot") == 3
            for worker_id in (1, 2, 3):
                other.add_worker(worker_id)
            assert rows(other) == rows(router)
        router.apply_event(1, {"event_id": 0, "data": "cleared"})
        assert rows(router) == [(0, 0, 0), (0, 4, 4), (0, 0, 10)]


@pytest.mark.parametrize(
    ("config", "best"),
    [
        ({"host_cache_hit_weight": 1.0, "disk_cache_hit_weight": 1.0}, 3),
        ({"host_cache_hit_weight": 1.0, "disk_cache_hit_weight": 0.0}, 1),
        ({"overlap_score_credit": 0.1, "host_cache_hit_weight": 1.0, "disk_cache_hit_weight": 0.0}, 2),
    ],
)
def test_weights(config: dict[str, float], best: int) -> None:
    with filled(**config) as router:
        assert router.best_worker(PROMPT)[0] == best
        shown = router.explain(PROMPT)
        assert shown["weights"]["host_cache_hit_weight"] == config["host_cache_hit_weight"]
        assert [row["disk_blocks"] for row in shown["workers"]] == [3, 0, 10]


def test_a_tier_that_does_not_exist_is_named() -> None:
    with Router(4) as router:
        router.add_worker(1)
        with pytest.raises(InvalidArgument, match="tape"):
            router.apply_event(1, {"event_id": 0, "storage_tier": "tape", "data": "cleared"})
