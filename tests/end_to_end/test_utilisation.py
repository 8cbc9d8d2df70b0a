"""How full the decode worker's blocks are while it decodes."""

import asyncio
import random
from pathlib import Path

import pytest

from checkpoints import tiny_llama
from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, prompt_of
from octavo.client import AsyncClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUM_REQUESTS = 24
NUM_AT_ONCE = 12


async def test_kv_blocks_are_over_96_percent_full_in_a_mixed_run(tmp_path: Path) -> None:
    """24 requests, 12 at once: prompts of 10 to 1,200 tokens, outputs of 20 to 2,000.

    Both are drawn log-normally, as conversations are: means of 157 and 1,067. Slots without KV are
    the rest of each sequence's last block (7.5 of 16 on average, 1.1 % here) and the blocks that a
    prompt reserved and whose KV is still on its way. The model is large enough that a step takes
    about as long as a message between the processes: a hand-over lasts a few steps, as it should.
    No tokens are guessed: random weights run in circles, whose outputs would last few steps.
    """
    sizes_of_model = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    model = tiny_llama(tmp_path / "model", **sizes_of_model)
    draw = random.Random(7)
    sizes = [
        (
            min(max(int(draw.lognormvariate(5.0, 0.9)), 10), 1200),
            min(max(int(draw.lognormvariate(7.1, 0.5)), 20), 2000),
        )
        for _ in range(NUM_REQUESTS)
    ]
    decode_settings = {"num_blocks": 2048, "max_draft_tokens": 0}
    async with (
        running_fleet(model, prefill={"num_blocks": 1024}, decode=decode_settings) as fleet,
        AsyncClient(fleet.address, timeout_s=100) as client,
    ):
        turns = asyncio.Semaphore(NUM_AT_ONCE)

        async def one(index: int, num_prompt: int, num_output: int) -> None:
            async with turns:
                prompt = prompt_of(num_prompt, seed=f"mixed {index}")
                await client.generate(prompt, max_tokens=num_output, **GREEDY)

        await asyncio.gather(*(one(i, *size) for i, size in enumerate(sizes)))
        (decode,) = await fleet.workers("decode")
        counters = decode.counters
        utilisation = counters.live_slot_steps / counters.allocated_slot_steps
        print(
            f"\nKV utilisation {utilisation:.2%} over {counters.steps} steps: {NUM_REQUESTS} "
            f"requests, {NUM_AT_ONCE} at once, {sum(p for p, _ in sizes)} prompt tokens, "
            f"{sum(o for _, o in sizes)} output tokens, {counters.preemptions} preemptions"
        )
        assert utilisation > 0.96
        await check_alive_and_quiet(fleet, model)
