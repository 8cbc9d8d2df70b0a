"""What an engine does outside of its model in one step of many sequences (bench/overhead.py).

The real engine runs on the engine thread of a real loop; the time between two forward passes is
what it took to sample, commit, tell the event loop, schedule and build the next batch.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from forward_probe import ForwardProbe
from load import random_prompts
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.loop import EngineLoop
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams

GROUP = b"o" * 32
PROMPT_TOKENS = 32


async def measure_steps(
    model: Path, dtype: str, num_seqs: int, steps: int, rounds: int, advance: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row a round, and one before that warms up and is left out."""
    torch.set_num_threads(1)
    num_blocks = num_seqs * (-(-(PROMPT_TOKENS + steps + 16) // 16) + 1)
    config = EngineConfig(model=str(model), dtype=dtype, num_blocks=2 * num_blocks)
    engine = build_engine(config)
    names = itertools.count()
    rows = []

    async def run(loop: EngineLoop, prompt: list[int]) -> None:
        sampling = SamplingParams(max_tokens=steps, temperature=0.0)
        seq = Sequence(str(next(names)), prompt, len(prompt), sampling, GROUP)
        async with loop.lease(seq) as stream:
            async for _ in stream:
                pass

    async with EngineLoop(engine) as loop:
        for index in range(-1, rounds):
            advance(f"{num_seqs} sequences in one engine")
            prompts = random_prompts(num_seqs, PROMPT_TOKENS, 40_000, seed=index + 77)
            with ForwardProbe() as probe:
                await asyncio.gather(*(run(loop, prompt) for prompt in prompts))
            cpu, clock = probe.decode_gaps(num_seqs)
            if not cpu:
                raise RuntimeError(f"no two steps decoded all {num_seqs}: take more steps")
            row = {"cpu_ms": median(cpu) * 1e3, "clock_ms": median(clock) * 1e3, "steps": len(cpu)}
            rows.append({"part": "steps", "round": index} | row)
    return rows[1:]
