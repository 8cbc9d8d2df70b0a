"""Prompts for the tiny checkpoints, what must follow them, and how a service is asked."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoints import reference_run
from octavo.client import AsyncClient
from octavo.client.completion import Completion
from service import Deployment

BLOCK = 16
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
CANARY = [5 + 7 * i % 350 for i in range(70)]


def prompt_of(length: int, seed: object = 0) -> list[int]:
    """Equal for equal arguments; no special tokens of the tiny checkpoints."""
    return random.Random(f"{seed}/{length}").choices(range(3, 370), k=length)


def expected(model: Path, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What `transformers` outputs greedily, end-of-sequence tokens passed over."""
    return reference_run(model, prompt, num_tokens, ignore_eos=True).token_ids


async def streamed(client: AsyncClient, prompt: Any, **fields: Any) -> Completion:
    """The completion of a stream that was read to its end."""
    stream = client.stream(prompt, timeout_s=60, **fields)
    async for _ in stream:
        pass
    return stream.completion


async def crowd(client: AsyncClient, prompts: Sequence[Any], **fields: Any) -> list[Completion]:
    """All at once."""
    return list(
        await asyncio.gather(*(client.generate(p, timeout_s=100, **fields) for p in prompts))
    )


async def check_alive_and_quiet(
    service: Deployment, model: Path, epochs: Sequence[int] | None = None
) -> None:
    """Cases K and Q: a canary is exact, the same processes answer it, nothing is held after it."""
    async with AsyncClient(service.address) as client:
        canary = await client.generate(CANARY, max_tokens=8, timeout_s=30, **GREEDY)
    assert canary.token_ids == expected(model, CANARY, 8)
    await service.wait_until_quiet()
    if epochs is not None:
        assert epochs_of(await service.all_workers()) == list(epochs), "a worker was restarted"


def epochs_of(workers: Sequence[Any]) -> list[int]:
    """Each worker's incarnation."""
    return [worker.worker.epoch for worker in workers]
