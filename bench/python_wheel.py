"""The peer of python_best_worker.py: Dynamo's wheel, ai-dynamo-runtime.

A decision of its router needs a runtime and running workers (python_router_wheel.py has them), so this is only the part before
it: the hashes of the tokens and the matches of its RadixTree. It takes token ids as lists only, so it is given lists in the rows with buffers too.
"""

from __future__ import annotations

import json

from dynamo.llm import RadixTree, compute_block_hash_for_seq
from python_serve import BLOCK, CHAIN, WORKERS, chains, long_prompt, serve

BLOCKS = 1_000_000


def main() -> None:
    """Fill the tree and answer."""
    tree = RadixTree()
    prompts: list[list[int]] = []
    for n, (event, tokens) in enumerate(chains(BLOCKS, compute_block_hash_for_seq)):
        tree.apply_event(n % WORKERS, json.dumps(event).encode())
        if tokens is not None:
            prompts.append(tokens)

    def find(tokens: list[int]) -> object:
        return tree.find_matches(compute_block_hash_for_seq(tokens, BLOCK))

    for n, tokens in enumerate(prompts):
        scores = find(tokens).scores
        assert scores == {(n % WORKERS, 0): CHAIN}, f"prompt {n} gave {scores}"
    hot, many = prompts[0], len(prompts)
    long, hashes = long_prompt(), compute_block_hash_for_seq(hot, BLOCK)
    serve(
        {
            "hot": lambda _: find(hot),
            "cold": lambda n: find(prompts[n % many]),
            "block_hash_8k": lambda _: compute_block_hash_for_seq(long, BLOCK),
            "radix_match": lambda _: tree.find_matches(hashes).scores,
        }
    )


if __name__ == "__main__":
    main()
