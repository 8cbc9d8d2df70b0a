"""What paging costs in the CPU kernel, and what a preemption costs by recompute and by swap.

Variants take turns within each round, in turning order and each on memory of its own; the best
round counts, in CPU time of this thread.
"""

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from octavo.checkpoint.resolve import resolve_model
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.host_blocks import HostBlocks
from octavo.engine.sequence import Sequence
from octavo.engine.swap_space import SwapSpace
from octavo.kernels.cpu import ops
from octavo.sampling_params import SamplingParams

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64  # SmolLM2-135M
LAYERS = 8  # walked through in turn, so that no cache near the core holds them all
SCALE = HEAD_DIM**-0.5
ROUNDS = 7
CALLS = 24
KNOWN_TOKENS = 256  # of the preempted sequence
GROUP = b"p" * 32
Variants = dict[str, Callable[[int], object]]


def best_ms(variants: Variants, calls: int = CALLS, rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds a call."""
    best = dict.fromkeys(variants, float("inf"))
    for turn in range(rounds):
        for name, run in list(variants.items())[:: 1 if turn % 2 else -1]:
            begin = time.thread_time()
            for call in range(calls):
                run(call)
            best[name] = min(best[name], (time.thread_time() - begin) / calls * 1e3)
    return best


def attention(rows: int, context: int, block_size: int, dtype: torch.dtype) -> dict[str, float]:
    """One layer's decode attention: blocks in order, blocks shuffled, and torch without blocks."""
    count = -(-context // block_size)
    shape = (rows * count, LAYERS, 2, KV_HEADS, block_size, HEAD_DIM)
    in_order = torch.arange(rows * count, dtype=torch.int32).view(rows, count)
    shuffled = torch.randperm(rows * count).to(torch.int32).view(rows, count)
    lengths = torch.full((rows,), context, dtype=torch.int32)
    query = torch.randn(rows, HEADS, HEAD_DIM).to(dtype)
    flat = torch.randn(LAYERS, 2, rows, KV_HEADS, context, HEAD_DIM).to(dtype)
    # A group's heads as rows of one query: torch then reads each KV head once, as our kernel does.
    grouped = query.view(rows, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)

    def contiguous(call: int) -> torch.Tensor:
        key, value = flat[call % LAYERS]
        return functional.scaled_dot_product_attention(grouped, key, value, scale=SCALE)

    def ours(tables: torch.Tensor) -> Callable[[int], object]:
        kv = torch.randn(shape).to(dtype)
        return lambda i: ops.decode_attention(query, kv[:, i % LAYERS], tables, lengths, SCALE)

    return best_ms({"in order": ours(in_order), "shuffled": ours(shuffled), "torch": contiguous})


def preemption(model: str, block_sizes: list[int]) -> dict[int, dict[str, float]]:
    """By block size, ms to compute 256 known tokens again, and to swap their blocks out and in."""
    path = str(resolve_model(model))
    engines = {
        size: build_engine(
            EngineConfig(
                model=path, block_size=size, num_blocks=1024 // size, max_num_batched_tokens=512
            )
        )
        for size in block_sizes
    }
    names = iter(range(1_000_000))

    def compute(size: int) -> None:
        engine = engines[size]
        number = next(names)
        prompt = [1_000 + (number * 7 + i) % 30_000 for i in range(KNOWN_TOKENS)]
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        engine.scheduler.add(Sequence(str(number), prompt, KNOWN_TOKENS, sampling, GROUP))
        while engine.scheduler.has_work:
            engine.step()

    spaces = {
        size: SwapSpace(HostBlocks(engine.kv_cache, 1024 // size), 1024 // size, size, None)
        for size, engine in engines.items()
    }

    def swap(size: int) -> None:
        space = spaces[size]
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        seq = Sequence("swapped", [1] * (KNOWN_TOKENS + 1), KNOWN_TOKENS, sampling, GROUP)
        seq.block_ids = list(range(-(-KNOWN_TOKENS // size)))
        seq.num_computed_tokens = KNOWN_TOKENS
        space.save([seq])
        saved = space.find(seq)
        assert saved is not None
        space.load(dict(zip(saved.host_ids, seq.block_ids, strict=True)))
        space.drop(seq)

    computed = best_ms({str(s): lambda _, s=s: compute(s) for s in block_sizes}, 1, 5)
    swapped = best_ms({str(s): lambda _, s=s: swap(s) for s in block_sizes}, 4, 5)
    return {s: {"recompute": computed[str(s)], "swap": swapped[str(s)]} for s in block_sizes}
