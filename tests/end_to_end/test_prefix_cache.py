"""What is cached is counted as documented and never changes an answer: cases C01, C02, C04, C06."""

import asyncio
from pathlib import Path

import grpc
import pytest
import torch

from checkpoints import reference_logits
from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import (
    BLOCK,
    GREEDY,
    check_alive_and_quiet,
    expected,
    prompt_of,
)
from octavo.client import AsyncClient, OctavoError, TokenLogprob
from service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Of random prompts both sides, in float32, lie up to 2e-5 from what float64 gives.
CLOSE: dict[str, float] = {"rel": 1e-5, "abs": 4e-5}


def most_cached(length: int) -> int:
    """Whole blocks, of which the last computed token is never one."""
    return (length - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1, 6 * BLOCK])
async def test_cached_tokens_are_counted_in_whole_blocks_below_the_prompt(
    service: Service, llama: Path, length: int
) -> None:
    """C01: each prompt twice, one output token."""
    prompt = prompt_of(length, seed=f"C01 {service.address}")
    async with AsyncClient(service.address) as client:
        first, second = [await client.generate(prompt, max_tokens=1, **GREEDY) for _ in range(2)]
    assert first.token_ids == second.token_ids == expected(llama, prompt, 1)
    assert first.usage.cached_prompt_tokens == 0
    # The second may go to another prefill worker before the index tells of the first.
    is_same_worker = second.timing.prefill_worker == first.timing.prefill_worker
    assert second.usage.cached_prompt_tokens == (most_cached(length) if is_same_worker else 0)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1, 6 * BLOCK])
async def test_prompt_logprobs_are_the_same_cold_and_cached(
    service: Service, llama: Path, length: int
) -> None:
    """C01: one entry for each prompt token, the first empty; the prompt is computed again."""
    prompt = prompt_of(length, seed=f"C01 logprobs {service.address}")
    wanted = torch.log_softmax(reference_logits(llama, prompt), dim=-1)
    async with AsyncClient(service.address) as client:
        for max_tokens in (1, 1, 3):
            reply = await client.generate(
                prompt, max_tokens=max_tokens, prompt_logprobs=1, timeout_s=30, **GREEDY
            )
            assert reply.token_ids == expected(llama, prompt, max_tokens)
            first, *others = reply.prompt_logprobs or [0]
            assert first is None and [one.token_id for one in others if one] == prompt[1:]
            for row, one in zip(wanted[:-1], others, strict=True):
                assert isinstance(one, TokenLogprob)
                assert one.logprob == pytest.approx(float(row[one.token_id]), **CLOSE)
                assert one.top == [(int(row.argmax()), pytest.approx(float(row.max()), **CLOSE))]
            assert reply.usage.cached_prompt_tokens == 0
            assert reply.prompt_token_ids == prompt and not reply.prompt
        plain = await client.generate(prompt, max_tokens=1, **GREEDY)
        assert plain.usage.cached_prompt_tokens in (0, most_cached(length))


@pytest.mark.parametrize("local_prefill_max_tokens", [0, 80], ids=["pulled", "local"])
async def test_every_length_is_exact_three_times_and_then_extended(
    llama: Path, local_prefill_max_tokens: int
) -> None:
    """C02: lengths 1 to 3B+1, thrice, then one token and one block longer."""
    decode = {"local_prefill_max_tokens": local_prefill_max_tokens}
    async with running_fleet(llama, decode=decode) as fleet, AsyncClient(fleet.address) as client:
        for length in range(1, 3 * BLOCK + 2):
            whole = prompt_of(length + BLOCK, seed="C02")
            cached = []
            for size in (length, length, length, length + 1, length + BLOCK):
                prompt, salt = whole[:size], f"{length}"
                reply = await client.generate(prompt, cache_salt=salt, max_tokens=4, **GREEDY)
                assert reply.token_ids == expected(llama, prompt, 4), (length, size)
                assert reply.usage.cached_prompt_tokens < size
                cached.append(reply.usage.cached_prompt_tokens)
            assert cached[0] == 0
            assert cached[1] == cached[2] == most_cached(length)
            # Whole blocks of what was sent before, and never less than before.
            assert cached[3] == length // BLOCK * BLOCK
            assert cached[4] == (length + 1) // BLOCK * BLOCK
        await check_alive_and_quiet(fleet, llama)


async def test_only_what_is_equal_from_the_start_is_reused(service: Service, llama: Path) -> None:
    """C04, in whole blocks: [0 1], [0 1 2 3 4 5], then [0 1 3 4 5] finds two blocks at most."""
    blocks = [prompt_of(BLOCK, seed=f"C04 {service.address} {i}") for i in range(6)]
    chains = ((0, 1), (0, 1, 2, 3, 4, 5), (0, 1, 3, 4, 5))
    async with AsyncClient(service.address) as client:
        for chain in chains:
            prompt = [token for i in chain for token in blocks[i]] + [7]
            reply = await client.generate(prompt, max_tokens=8, **GREEDY)
            assert reply.token_ids == expected(llama, prompt, 8)
            assert reply.usage.cached_prompt_tokens <= 2 * BLOCK


async def prefill_began(fleet: Fleet, computed_before: int, num_tokens: int) -> None:
    """Wait until the prefill worker computed so many tokens more."""
    engine, loop = fleet.prefills[0].engine, fleet.prefills[0].loop
    while (await loop.call(engine.counters)).prompt_tokens_computed < computed_before + num_tokens:
        await asyncio.sleep(0)


@pytest.mark.parametrize("num_tokens", [0, 16, 100, 300])
async def test_a_prompt_cancelled_in_prefill_leaves_no_half_filled_block(
    llama: Path, num_tokens: int
) -> None:
    """C04: the same prompt, sent at once, is exact and finds only blocks that were completed."""
    async with (
        running_fleet(llama, prefill={"max_num_batched_tokens": 24}) as fleet,
        AsyncClient(fleet.address) as client,
    ):
        for round_number in range(3):
            prompt = prompt_of(500, seed=f"cancelled {round_number}")
            before = (await fleet.workers("prefill"))[0].counters.prompt_tokens_computed
            cancelled = asyncio.create_task(client.generate(prompt, max_tokens=8, **GREEDY))
            async with asyncio.timeout(10):
                await prefill_began(fleet, before, num_tokens)
            cancelled.cancel()
            await asyncio.wait({cancelled})
            reply = await client.generate(prompt, max_tokens=8, **GREEDY)
            assert reply.token_ids == expected(llama, prompt, 8)
            after = (await fleet.workers("prefill"))[0].counters.prompt_tokens_computed
            # Whatever it found, somebody had computed.
            assert after - before >= len(prompt)
        await check_alive_and_quiet(fleet, llama)


async def test_only_equal_salts_share(llama: Path) -> None:
    """C06, for salts: odd ones are salts like any other, too long ones are refused by name."""
    prompt = prompt_of(2 * BLOCK + 3, seed="C06")
    longest = "é" * 128  # 256 bytes
    salts = [
        "",
        "X",
        "x",
        "a|b",
        "a",
        "b",
        "ab",
        "\0",
        "\0\0",
        "/",
        " ",
        "\N{GRINNING FACE}",
        longest,
    ]
    answer = expected(llama, prompt, 3)
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address) as client:
        for num_cached in (0, 2 * BLOCK):
            for salt in salts:
                reply = await client.generate(prompt, cache_salt=salt, max_tokens=3, **GREEDY)
                assert reply.token_ids == answer, salt
                assert reply.usage.cached_prompt_tokens == num_cached, salt
        for salt in (longest + "x", "x" * 1024):
            with pytest.raises(OctavoError, match="cache_salt has") as refused:
                await client.generate(prompt, cache_salt=salt, max_tokens=3, **GREEDY)
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.field == "cache_salt"
        await check_alive_and_quiet(fleet, llama)
