"""The same decisions and the same loads as Dynamo's own selection service, in 2,000 random situations, configured by the same environment."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from kit import wheel
from ports import free_ports

from dynamo_go import KvRouterConfig, Router, compute_block_hash_for_seq

PEER = Path(__file__).resolve().parents[2] / "testdata" / "peers" / "selection_service" / "serve.py"
BLOCK = 4
MODEL = "m"
FLEETS, STEPS = 20, 100
# What both read from the environment, a fleet each in turn. Of DYN_ROUTER_TRACK_ACTIVE_BLOCKS the service takes no notice.
ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "0.5"},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "1.75", "DYN_ROUTER_PREFILL_LOAD_SCALE": "2"},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY": "0.5"},
    {"DYN_ROUTER_PREFILL_LOAD_SCALE": "0.25", "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "0.5"},
    {"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "8"},
    {"DYN_ROUTER_TRACK_PREFILL_TOKENS": "false"},
    {"DYN_ROUTER_ASSUME_KV_REUSE": "0"},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "3"},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "0"},
]
RANKS = [(1, 0), (2, 0), (3, 0), (4, 0), (4, 1)]

Rank = tuple[int, int]


class Service:
    """Dynamo's selection service in a process."""

    def __init__(self) -> None:
        answers, theirs = os.pipe()
        self._process = subprocess.Popen(
            [wheel(), str(PEER), str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs],
            env={**{k: v for k, v in os.environ.items() if not k.startswith("DYN_")}, "DYN_LOG": "error"},
            text=True,
        )
        os.close(theirs)
        self._answers = os.fdopen(answers)

    def __call__(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()
        assert line, f"the service ended with {self._process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._answers.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


class Fleet:
    """Workers that both routers know, their engines' publishers, and what was booked."""

    def __init__(self, service: Service, rng: random.Random, environment: dict[str, str]) -> None:
        self.service, self.rng = service, rng
        self.router = Router(BLOCK, KvRouterConfig())
        self.context = zmq.Context()
        self.sockets: dict[Rank, zmq.Socket[bytes]] = {}
        self.published: dict[Rank, int] = dict.fromkeys(RANKS, 0)
        self.held: dict[Rank, set[tuple[int, ...]]] = {rank: set() for rank in RANKS}
        self.booked: dict[str, bool] = {}  # whether its prefill is over
        self.count = 0
        service("restart", environment)
        for worker_id in sorted({worker_id for worker_id, _ in RANKS}):
            ports = free_ports(2)
            size = sum(worker == worker_id for worker, _ in RANKS)
            for rank in range(size):
                self.sockets[worker_id, rank] = self.context.socket(zmq.PUB)
                self.sockets[worker_id, rank].bind(f"tcp://127.0.0.1:{ports[rank]}")
            self.router.add_worker(worker_id, dp_size=size)
            worker = {"worker_id": worker_id, "model_name": MODEL, "endpoint": "http://h", "block_size": BLOCK}
            worker |= {"kv_events_endpoints": {r: f"tcp://127.0.0.1:{ports[r]}" for r in range(size)}}
            worker |= {"data_parallel_start_rank": 0, "data_parallel_size": size, "max_num_batched_tokens": 1000}
            assert service("upsert_worker", worker)["lifecycle"] == "schedulable"
        while len(service("potential_loads", self.asked([]))) < len(RANKS):
            time.sleep(0.001)  # it takes workers in later than it says

    def close(self) -> None:
        self.router.close()
        self.context.destroy(linger=0)

    def prompt(self) -> list[int]:
        """Give a prompt that often begins like others, of whole and partial blocks, or none."""
        chain = [self.rng.randrange(2) for _ in range(self.rng.randrange(7))]
        tokens = [n for depth, pick in enumerate(chain) for n in self.block(depth, pick)]
        return tokens + [999] * self.rng.randrange(BLOCK)

    @staticmethod
    def block(depth: int, pick: int) -> list[int]:
        return [1000 * (depth + 1) + 10 * pick + n for n in range(BLOCK)]

    # -- what happens

    def book(self) -> None:
        request_id, tokens = f"r{self.count}", self.prompt()
        self.count += 1
        got = self.service("select_and_reserve", self.asked(tokens) | {"selection_id": request_id})
        assert (got["worker_id"], got["dp_rank"]) in self.cheapest(tokens)
        where = {"worker_id": got["worker_id"], "dp_rank": got["dp_rank"]}
        assert (
            self.router.best_worker(tokens, request_id=request_id, **where)[2] * BLOCK
            == got["overlap"]["dp"][str(got["dp_rank"])]
        )
        self.booked[request_id] = False

    def complete(self) -> None:
        waiting = [request_id for request_id, done in self.booked.items() if not done]
        if waiting:
            request_id = self.rng.choice(waiting)
            self.booked[request_id] = True
            self.router.mark_prefill_complete(request_id)
            self.service("prefill_complete", request_id)

    def free(self) -> None:
        if self.booked:
            request_id = self.rng.choice(list(self.booked))
            del self.booked[request_id]
            self.router.free(request_id)
            self.service("free_reservation", request_id)

    def store(self) -> None:
        tokens = self.prompt()
        whole = tokens[: len(tokens) // BLOCK * BLOCK]
        rank = self.rng.choice(RANKS)
        new = [path for path in self.paths(whole) if path not in self.held[rank]]
        if not new:
            return
        self.held[rank].update(new)
        depth = len(new[0]) // BLOCK - 1
        names = self.names(whole)
        parent = names[depth - 1] if depth else None
        hashes = compute_block_hash_for_seq(whole, BLOCK)[depth:]
        blocks = [{"block_hash": n, "tokens_hash": h} for n, h in zip(names[depth:], hashes, strict=True)]
        self.apply(rank, {"stored": {"parent_hash": parent, "blocks": blocks}})
        event = ["BlockStored", names[depth:], parent, whole[depth * BLOCK :], BLOCK, None]
        self.publish(rank, event, whole)

    def remove(self) -> None:
        rank = self.rng.choice(RANKS)
        inner = {path[:-BLOCK] for path in self.held[rank]}
        leaves = sorted(self.held[rank] - inner)
        if leaves:
            path = self.rng.choice(leaves)
            self.held[rank].remove(path)
            name = self.names(list(path))[-1]
            self.apply(rank, {"removed": {"block_hashes": [name]}})
            self.publish(rank, ["BlockRemoved", [name]], list(path))

    def apply(self, rank: Rank, data: Any) -> None:
        self.router.apply_event(rank[0], {"event_id": 0, "dp_rank": rank[1], "data": data}, duplicate_stores="set")

    def publish(self, rank: Rank, event: list[Any], tokens: list[int]) -> None:
        """Send an event until the service has it: a subscriber that is not there yet misses it."""
        for _ in range(500):
            payload = msgspec.msgpack.encode([0.0, [event], None])
            self.sockets[rank].send_multipart([b"", self.published[rank].to_bytes(8, "big"), payload])
            self.published[rank] += 1
            for _ in range(20):
                if self.overlaps(tokens) == self.service_overlaps(tokens):
                    return
                time.sleep(0.001)
        raise AssertionError(f"{event} of {rank} is not heard: {self.service_overlaps(tokens)}")

    @staticmethod
    def paths(tokens: list[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]

    def names(self, tokens: list[int]) -> list[int]:
        """Give what every engine calls the blocks: something that depends on all tokens before."""
        return [hash(path) & (1 << 62) - 1 for path in self.paths(tokens)]

    # -- what is compared

    @staticmethod
    def asked(tokens: list[int]) -> dict[str, Any]:
        return {"model_name": MODEL, "token_ids": tokens}

    def overlaps(self, tokens: list[int]) -> dict[Rank, int]:
        rows = self.router.get_overlap_scores(tokens)["workers"]
        return {(row["worker_id"], row["dp_rank"]): row["device_blocks"] for row in rows}

    def service_overlaps(self, tokens: list[int]) -> dict[Rank, int]:
        rows = self.service("overlap_scores", self.asked(tokens))["workers"]
        return {(row["worker_id"], row["dp_rank"]): row["device_blocks"] for row in rows}

    def cheapest(self, tokens: list[int]) -> list[Rank]:
        return [(pick["worker_id"], pick["dp_rank"]) for pick in self.router.explain(tokens)["picks"]]

    def compare(self) -> None:
        tokens = self.prompt()
        key = ("worker_id", "dp_rank")
        ours = sorted(self.router.get_potential_loads(tokens), key=lambda row: [row[k] for k in key])  # type: ignore[literal-required]
        theirs = sorted(self.service("potential_loads", self.asked(tokens)), key=lambda row: [row[k] for k in key])
        assert ours == theirs, tokens
        cheapest = self.cheapest(tokens)
        drawn = self.service("drawn", self.asked(tokens), cheapest)
        assert [tuple(rank) for rank in drawn] == sorted(cheapest), (tokens, self.router.explain(tokens))


@pytest.mark.parametrize("seed", range(FLEETS))
def test_same_decisions_and_loads(service: Service, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    environment = ENVIRONMENTS[seed % len(ENVIRONMENTS)]
    for name in [name for name in os.environ if name.startswith("DYN_ROUTER_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fleet = Fleet(service, rng, environment)
    try:
        happenings = [fleet.book] * 5 + [fleet.complete] * 3 + [fleet.free] * 3 + [fleet.store] * 3 + [fleet.remove]
        for _ in range(STEPS):
            rng.choice(happenings)()
            fleet.compare()
    finally:
        fleet.close()
