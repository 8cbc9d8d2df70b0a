"""A closed-loop load: N callers, each sending its next request when the last one ended.

Definitions (as in vLLM's benchmark): TTFT is send to first token; ITL is the gap between two
messages that carry tokens, pooled over requests; TPOT is (end - first token) / (tokens - 1) of one
request; throughput is output tokens over the wall time from first send to last token.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

# Streams the sizes of the token groups of one request, as they arrive.
Send = Callable[[list[int], int], AsyncIterator[int]]


@dataclass(slots=True)
class Sample:
    """One request: when it was sent and when each group of tokens came, in seconds."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def ttft(self) -> float:
        return self.arrivals[0][0] - self.sent

    @property
    def itls(self) -> list[float]:
        times = [at for at, _ in self.arrivals]
        return [after - before for before, after in zip(times, times[1:], strict=False)]

    @property
    def tpot(self) -> float:
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / max(1, self.num_tokens - 1)


def random_prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts that share nothing; ids below 1,000 are left out (special tokens and bytes)."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1_000, vocab_size, size=length).tolist() for _ in range(count)]


async def run_closed_loop(
    send: Send,
    prompts: list[list[int]],
    concurrency: int,
    max_tokens: int,
) -> list[Sample]:
    """Send every prompt with `concurrency` of them open at a time."""
    queue = iter(prompts)
    samples: list[Sample] = []

    async def caller() -> None:
        for prompt in queue:
            sample = Sample(time.perf_counter())
            async for count in send(prompt, max_tokens):
                sample.arrivals.append((time.perf_counter(), count))
            if sample.num_tokens != max_tokens:
                raise RuntimeError(f"asked for {max_tokens} tokens, got {sample.num_tokens}")
            samples.append(sample)

    callers: list[Awaitable[None]] = [caller() for _ in range(concurrency)]
    await asyncio.gather(*callers)
    return samples


def summarize(samples: list[Sample]) -> dict[str, float]:
    """Throughput in tokens/s, times in milliseconds."""
    begin = min(sample.sent for sample in samples)
    end = max(sample.arrivals[-1][0] for sample in samples)
    figures = {"output_tokens_per_s": sum(s.num_tokens for s in samples) / (end - begin)}
    for name, values in (
        ("ttft", [s.ttft for s in samples]),
        ("itl", [itl for s in samples for itl in s.itls]),
        ("tpot", [s.tpot for s in samples]),
    ):
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}_ms"] = float(np.percentile(values, percent)) * 1e3
    return figures
