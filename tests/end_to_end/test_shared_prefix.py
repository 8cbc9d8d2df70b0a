"""A system prompt that 100 requests share is computed, moved and stored once."""

from pathlib import Path

import pytest

from end_to_end.prompts import BLOCK, GREEDY, check_alive_and_quiet, crowd, expected, prompt_of
from octavo.client import AsyncClient
from octavo.internal.v1alpha1 import worker_pb2
from service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUM_SHARED = 1024
NUM_REQUESTS = 100
NUM_OUTPUT = 8
Counters = worker_pb2.GetWorkerResponse.Counters


async def counters(service: Service) -> tuple[Counters, Counters]:
    prefill, decode = await service.all_workers()
    return prefill.counters, decode.counters


@pytest.mark.parametrize("num_tail", [40, 90], ids=["short tails", "tails over the local limit"])
async def test_99_followers_of_a_system_prompt_compute_only_their_tails(
    one_pair: Service, llama: Path, num_tail: int
) -> None:
    system = prompt_of(NUM_SHARED, seed=f"system {num_tail}")
    prompts = [system + prompt_of(num_tail, seed=f"tail {i}") for i in range(NUM_REQUESTS)]
    p_before, d_before = await counters(one_pair)
    async with AsyncClient(one_pair.address) as client:
        first = await client.generate(prompts[0], max_tokens=NUM_OUTPUT, **GREEDY)
        others = await crowd(client, prompts[1:], max_tokens=NUM_OUTPUT, **GREEDY)
    p, d = await counters(one_pair)

    for prompt, reply in list(zip(prompts, [first, *others], strict=True))[::9]:
        assert reply.token_ids == expected(llama, prompt, NUM_OUTPUT)
    assert first.usage.cached_prompt_tokens == 0
    assert all(reply.usage.cached_prompt_tokens == NUM_SHARED for reply in others)

    on_prefill = p.prompt_tokens_computed - p_before.prompt_tokens_computed
    on_decode = d.prompt_tokens_computed - d_before.prompt_tokens_computed
    assert on_prefill + on_decode == NUM_SHARED + NUM_REQUESTS * num_tail, "computed more than once"
    saved = 1 - (on_prefill + on_decode - NUM_REQUESTS * num_tail) / (NUM_REQUESTS * NUM_SHARED)
    assert saved >= 0.99

    transferred = d.blocks_transferred - d_before.blocks_transferred
    tail_blocks = -(-(NUM_SHARED + num_tail) // BLOCK) - NUM_SHARED // BLOCK
    num_pulled = (on_prefill - NUM_SHARED) // num_tail
    assert transferred == NUM_SHARED // BLOCK + num_pulled * tail_blocks, "moved more than once"
    stored = [
        now.blocks_cached - before.blocks_cached for now, before in ((p, p_before), (d, d_before))
    ]
    if num_tail > 64:  # no tail is short enough for the decode worker
        assert num_pulled == NUM_REQUESTS
        # The last token's KV is never computed: it has no successor.
        sizes = (NUM_SHARED + num_tail, NUM_SHARED + num_tail + NUM_OUTPUT - 1)
        shared = NUM_SHARED // BLOCK
        own = [NUM_REQUESTS * (size // BLOCK - shared) for size in sizes]
        assert stored == [shared + own[0], shared + own[1]], "stored more than once"
    print(
        f"\n{NUM_REQUESTS} requests over {NUM_SHARED} shared tokens and tails of {num_tail}: "
        f"{on_prefill} prompt tokens computed by the prefill worker, {on_decode} by the decode "
        f"worker, {saved:.2%} of the shared prefill saved; {transferred} blocks moved; stored: "
        f"{stored[0]} blocks on the prefill worker, {stored[1]} on the decode worker"
    )
    await check_alive_and_quiet(one_pair, llama)
