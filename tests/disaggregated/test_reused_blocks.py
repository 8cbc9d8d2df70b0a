"""A copy that outlives its request must not land in the next request's KV (case C34)."""

import asyncio
from pathlib import Path

import pytest

from disaggregated.copies import HeldCopies
from disaggregated.pair import ended, running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
@pytest.mark.parametrize("num_blocks_before", [0, 1, 3])
async def test_the_next_request_waits_for_the_late_copy_and_is_exact(
    tiny_model: Path, transport: str, num_blocks_before: int
) -> None:
    """The pool holds one such request: B can only have A's blocks."""
    settings = {"transport": transport}
    async with running_pair(tiny_model, settings, settings | {"num_blocks": 7}) as pair:
        copies = HeldCopies(after=num_blocks_before)
        copies.install(pair.decode.engine.kv_cache)
        first = asyncio.create_task(pair.generate(sequence(prompt_of(90))))
        await copies.held.wait()
        first.cancel()
        await ended(first)

        prompt = prompt_of(90, seed=1)
        second = asyncio.create_task(pair.generate(sequence(prompt, greedy(12))))
        done, _ = await asyncio.wait({second}, timeout=0.3)
        assert not done, "the blocks are still written to"
        copies.let_go()
        assert (await second).tokens == expected_tokens(tiny_model, prompt, 12)
        await pair.wait_until_quiet()
