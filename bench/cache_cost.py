"""What the prefix cache costs where it never hits (bench/ttft.py).

Two engines run the same prompts, which share nothing, in rounds in turn; one has a cache that
finds nothing and keeps nothing. What the cache costs lies outside of the model, so the difference
is taken of the CPU time outside of the forward passes, and related to all CPU time of the engine
without it.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from forward_probe import ForwardProbe
from load import random_prompts
from octavo.block_key import BlockKey
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams

GROUP = b"c" * 32
PROMPT_TOKENS, OUTPUT_TOKENS, SEQUENCES = 512, 32, 8
_names = itertools.count()


class NoCache(PrefixCache):
    """Finds nothing and registers nothing."""

    def match(
        self,
        group_key: bytes,
        root: BlockKey,
        token_ids: list[int],
        max_blocks: int,
        keys: list[BlockKey] | None = None,
    ) -> list[int]:
        return []

    def commit(self, seq: Sequence) -> list[int]:
        return []


def engine_with(model: Path, dtype: str, *, is_cached: bool) -> Engine:
    # Fewer blocks than a few rounds fill: a cache in use evicts, too.
    num_blocks = 3 * SEQUENCES * (PROMPT_TOKENS + OUTPUT_TOKENS) // 16
    engine = build_engine(EngineConfig(model=str(model), dtype=dtype, num_blocks=num_blocks))
    if not is_cached:
        old = engine.scheduler
        engine.scheduler = Scheduler(
            old.pool, NoCache(old.pool, old.limits.block_size), old.limits, "none"
        )
    return engine


def run(engine: Engine, prompts: list[list[int]]) -> tuple[float, float]:
    """CPU seconds (outside of the model, in all) until every prompt has its output."""
    with ForwardProbe() as probe:
        begin = time.thread_time()
        for prompt in prompts:
            sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0)
            seq = Sequence(str(next(_names)), prompt, len(prompt), sampling, GROUP)
            engine.scheduler.add(seq)
        while engine.scheduler.has_work:
            engine.step()
            engine.scheduler.prefix_cache.drain_events()
        total = time.thread_time() - begin
    return total - probe.model_cpu_s, total


def measure_cost(
    model: Path, dtype: str, rounds: int, advance: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row a round, and one before that warms up and is left out."""
    torch.set_num_threads(1)
    engines = {
        is_cached: engine_with(model, dtype, is_cached=is_cached) for is_cached in (True, False)
    }
    rows = []
    for index in range(-1, rounds):
        prompts = random_prompts(SEQUENCES, PROMPT_TOKENS, 40_000, seed=index + 50)
        took: dict[bool, tuple[float, float]] = {}
        for is_cached in (True, False)[:: 1 if index % 2 else -1]:
            advance("prefix cache on" if is_cached else "prefix cache off")
            took[is_cached] = run(engines[is_cached], prompts)
        (cached, _), (plain, total) = took[True], took[False]
        rows.append(
            {
                "part": "cache",
                "round": index,
                "outside_with_cache_ms": cached * 1e3,
                "outside_without_ms": plain * 1e3,
                "total_without_ms": total * 1e3,
                "cost_percent": 100 * (cached - plain) / total,
            }
        )
    return rows[1:]
