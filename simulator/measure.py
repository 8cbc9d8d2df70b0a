"""Times model steps and block copies in this process, on one thread: what calibrates a simulation.

CPU time of the thread, not the wall's: waiting for other processes is no property of the model.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams
from octavo.transfer.digest import block_digests
from simulator.cost import Curve, MeasuredCost

DECODE_ROWS = (1, 2, 4, 8, 16, 32)
CHUNKS = ((1, 16), (1, 64), (1, 128), (2, 128), (3, 128), (4, 128))  # (prompts, tokens each)
NEAR, FAR = 64, 448  # contexts whose difference gives the cost of a token of context
SLOPE_ROWS = 16
LONG_CHUNK = 512
STEPS = 16
REPEATS = 7
QUIET_PERCENTILE = 25  # other processes slow a step also through caches and memory
GROUP = b"m" * 32


class StepTimer:
    """Runs chosen steps on a real engine."""

    def __init__(self, model: Path) -> None:
        torch.set_num_threads(1)
        # No guesses, as in the served runs: a step has one row for each sequence.
        config = EngineConfig(
            model=str(model), num_blocks=1024, max_num_batched_tokens=512, max_draft_tokens=0
        )
        self.engine: Engine = build_engine(config)
        self._rng = np.random.default_rng(5)
        self._num_sequences = 0

    def decode(self, rows: int, context: int) -> float:
        """Seconds of a step of `rows` decode rows near `context`."""
        seq_ids = [self._add(context, STEPS + 64) for _ in range(rows)]
        scheduler = self.engine.scheduler
        while scheduler.load().waiting_prefill_tokens:
            self.engine.step()
        self.engine.step()
        took = _quiet([self._timed_step() for _ in range(STEPS)])
        for seq_id in seq_ids:
            scheduler.release(seq_id)
        return took

    def prefill(self, prompts: int, tokens: int) -> float:
        """Seconds of the step that computes so many fresh prompts whole."""
        took = []
        for _ in range(REPEATS):
            for _ in range(prompts):
                self._add(tokens, 1)
            took.append(self._timed_step())
            assert not self.engine.scheduler.has_work
        return _quiet(took)

    def copy_s_per_byte(self) -> float:
        """Seconds a byte to copy blocks and take their digests: each side of a hand-off does so."""
        cache = self.engine.kv_cache
        target = bytearray(cache.block_bytes)

        def move() -> None:
            for block_id in range(64):
                block = cache.read_block(block_id)
                block_digests([block])
                target[:] = block

        return _quiet([_timed(move) for _ in range(REPEATS)]) / (64 * cache.block_bytes)

    def _add(self, num_prompt: int, max_tokens: int) -> str:
        self._num_sequences += 1
        prompt = self._rng.integers(1_000, 40_000, num_prompt).tolist()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        seq_id = f"timed-{self._num_sequences}"
        self.engine.scheduler.add(Sequence(seq_id, prompt, num_prompt, sampling, GROUP))
        return seq_id

    def _timed_step(self) -> float:
        return _timed(self.engine.step)


def measured_cost(timer: StepTimer, on_point: Callable[[str], None]) -> MeasuredCost:
    """Fit the curves; `on_point` hears what is measured next."""
    on_point("context")
    near, far = timer.decode(SLOPE_ROWS, NEAR), timer.decode(SLOPE_ROWS, FAR)
    context_token_s = max((far - near) / (SLOPE_ROWS * (FAR - NEAR)), 0.0)
    decode_rows: list[tuple[float, float]] = []
    for rows in DECODE_ROWS:
        on_point(f"{rows} decode rows")
        seconds = timer.decode(rows, NEAR)
        decode_rows.append((rows, seconds - context_token_s * rows * (NEAR + STEPS // 2)))
    on_point("prompts")
    chunks = {shape: timer.prefill(*shape) for shape in CHUNKS}
    long = timer.prefill(1, LONG_CHUNK)
    short = chunks[LONG_CHUNK // 128, 128]
    pair_s = max((long - short) / (_pairs(1, LONG_CHUNK) - _pairs(LONG_CHUNK // 128, 128)), 0.0)
    tokens: Curve = tuple(
        (prompts * length, seconds - pair_s * _pairs(prompts, length))
        for (prompts, length), seconds in chunks.items()
    )
    return MeasuredCost(tuple(decode_rows), tokens, context_token_s, pair_s)


def _pairs(prompts: int, tokens: int) -> float:
    return prompts * tokens * (tokens + 1) / 2


def _timed(action: Callable[[], object]) -> float:
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def _quiet(seconds: list[float]) -> float:
    return float(np.percentile(seconds, QUIET_PERCENTILE))
