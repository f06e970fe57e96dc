"""What every Python version must pass, without test tools: the extension reads ints as this version lays them out."""

from __future__ import annotations

import sys
from array import array

from dynamo_go import InvalidArgument, NoWorkers, Router, compute_block_hash_for_seq


def tokens() -> None:
    """Lists give what a buffer gives, at every border of the representation of int."""
    values = [0, 1, 255, 256, 2**15 - 1, 2**15, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1]
    want = compute_block_hash_for_seq(array("I", values), 1)
    assert want == compute_block_hash_for_seq(values, 1)
    assert want == compute_block_hash_for_seq(tuple(values), 1)
    assert compute_block_hash_for_seq([1, 2, 3, 4], 4) == [14643705804678351452]
    assert compute_block_hash_for_seq(range(16), 16) == [15310707395893867146]
    for bad in (-1, -(2**15), -(2**30), -(2**31), -(2**62), 2**32, 2**60, 2**64, -(2**64)):
        try:
            compute_block_hash_for_seq([7, bad], 1)
        except InvalidArgument as error:
            assert f"token_ids[1]={bad}," in str(error), error
        else:
            raise AssertionError(f"{bad} was taken")


def route() -> None:
    """A prompt goes to the holder of its prefix."""
    with Router(4, seed=1) as router:
        try:
            router.best_worker([1])
        except NoWorkers:
            pass
        else:
            raise AssertionError("there is no worker")
        for worker in (1, 0xF123456789ABCDEF):
            router.add_worker(worker)
        prompt = list(range(40))
        hashes = compute_block_hash_for_seq(prompt, 4)
        blocks = [{"block_hash": i, "tokens_hash": h} for i, h in enumerate(hashes)]
        event = {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}
        router.apply_event(0xF123456789ABCDEF, event)
        for _ in range(1000):
            assert router.best_worker(prompt, request_id="a") == (0xF123456789ABCDEF, 0, 10)
            assert sum(row["active_requests"] for row in router.get_potential_loads([])) == 1
            router.mark_prefill_complete("a")
            router.free("a")


if __name__ == "__main__":
    tokens()
    route()
    print("ok, Python", sys.version.split()[0])
