"""What a request cost: exact counts for every way in which it can end and be served (C27)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_llama
from checkpoints.tokenizer import IM_END
from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, prompt_of, streamed
from end_to_end.test_text import PROMPT, WAYS, ids_of, speaker
from end_to_end.vocabulary import START, saying, word_tokenizer
from octavo.client import AsyncClient
from octavo.client.completion import Completion, Timing, Usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = ["a", "b", "c", "d"]  # and the end of the sequence


def endings(token_ids: list[int]) -> list[tuple[dict[str, Any], str, int]]:
    """(what to ask for, why it ends, after how many tokens)."""
    return [
        ({}, "stop", 5),
        ({"stop_token_ids": [token_ids[1]]}, "stop", 2),
        ({"stop_token_ids": [token_ids[0]]}, "stop", 1),
        ({"stop": ["bc"]}, "stop_sequence", 3),
        ({"stop": ["a"]}, "stop_sequence", 1),
        ({"max_tokens": 3}, "length", 3),
        ({"max_tokens": 1}, "length", 1),
    ]


def check_timing(timing: Timing, *, is_pulled: bool, has_prefill_leg: bool) -> None:
    assert 0 <= timing.queue_s <= timing.time_to_first_token_s <= timing.total_s
    assert 0 < timing.prefill_s <= timing.total_s
    assert (timing.transfer_s > 0) == is_pulled
    assert timing.prefill_worker == ("prefill-0" if has_prefill_leg else "")
    assert timing.decode_worker == ("decode-0" if is_pulled or not has_prefill_leg else "")


@WAYS
async def test_every_ending_cold_and_cached(tmp_path: Path, local_tokens: int) -> None:
    """41 prompt tokens: 2 blocks of 16 can be found, 9 tokens are left."""
    tokenizer = word_tokenizer(WORDS)
    token_ids = ids_of(tokenizer, WORDS)
    async with speaker(saying(tmp_path / "m", tokenizer, token_ids), local_tokens) as (_, client):
        for number, (fields, reason, num_tokens) in enumerate(endings(token_ids)):
            asked: dict[str, Any] = {"temperature": 0.0, "cache_salt": f"{number}"} | fields
            has_prefill_leg = local_tokens == 0 or asked.get("max_tokens") == 1
            is_pulled = has_prefill_leg and num_tokens > 1
            for found in (0, 32, 32):
                transferred = len(PROMPT) - found if is_pulled else 0
                on_prefill = found if has_prefill_leg else 0
                on_decode = found if is_pulled or not has_prefill_leg else 0
                usage = Usage(len(PROMPT), num_tokens, found, transferred, on_prefill, on_decode)
                reply = await (
                    streamed(client, PROMPT, **asked) if found else client.generate(PROMPT, **asked)
                )
                assert (reply.usage, reply.finish_reason) == (usage, reason), fields
                assert reply.token_ids == [*token_ids, IM_END][:num_tokens]
                check_timing(reply.timing, is_pulled=is_pulled, has_prefill_leg=has_prefill_leg)


async def test_a_prompt_of_whole_blocks_is_all_there_on_the_decode_worker(tmp_path: Path) -> None:
    """The prefill worker computes its last block anew, for its logits; nothing is transferred."""
    tokenizer = word_tokenizer(WORDS)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, WORDS))
    prompt = [*range(20, 51), START]
    async with speaker(model, 0) as (_, client):
        first, second = [await client.generate(prompt, temperature=0.0) for _ in range(2)]
        assert first.usage == Usage(32, 5, 0, 32, 0, 0)
        assert second.usage == Usage(32, 5, 16, 0, 16, 32)


async def test_workers_that_hold_different_parts_say_so(tmp_path: Path) -> None:
    """Outputs of one token are the prefill worker's alone, short prompts the decode worker's."""
    tokenizer = word_tokenizer(WORDS)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, WORDS))
    prompt = [*range(20, 90), START]  # 71 tokens: more than the decode worker computes

    async def ask(client: AsyncClient, tokens: list[int], **fields: Any) -> Completion:
        return await client.generate(tokens, temperature=0.0, **fields)

    async with speaker(model, 64) as (_, client):
        assert (await ask(client, prompt, max_tokens=1)).usage == Usage(71, 1, 0, 0, 0, 0)
        assert (await ask(client, prompt[:40], max_tokens=2)).usage == Usage(40, 1, 0, 0, 0, 0)
        assert (await ask(client, prompt)).usage == Usage(71, 5, 64, 71 - 32, 64, 32)


async def test_a_cancelled_request_leaves_the_counts_of_others_alone(tmp_path: Path) -> None:
    """What it left in the caches is found, and counted as any other's."""
    model = tiny_llama(tmp_path / "m")
    prompt = prompt_of(41, seed="cancelled")
    async with (
        running_fleet(model, decode={"local_prefill_max_tokens": 0}) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        seen = 0
        async with client.stream(prompt, max_tokens=500, **GREEDY) as stream:
            async for delta in stream:
                seen += len(delta.token_ids)
                if seen >= 3:
                    break
        await fleet.wait_until_quiet()
        reply = await client.generate(prompt, max_tokens=4, **GREEDY)
        assert reply.usage == Usage(41, 4, 32, 9, 32, 32)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
async def test_a_preemption_changes_no_count(tmp_path: Path, preemption: str) -> None:
    model = tiny_llama(tmp_path / "m")
    decode = {"local_prefill_max_tokens": 0, "num_blocks": 12, "preemption": preemption}
    async with running_fleet(model, decode=decode) as fleet:
        async with AsyncClient(fleet.address, timeout_s=60) as client:
            replies = await asyncio.gather(
                *(
                    client.generate(prompt_of(41, seed=i), max_tokens=100, **GREEDY)
                    for i in range(4)
                )
            )
        assert [reply.usage for reply in replies] == [Usage(41, 100, 0, 41, 0, 0)] * 4
        (decode_worker,) = await fleet.workers("decode")
        counters = decode_worker.counters
        kinds = {"recompute": counters.preemptions_recompute, "swap": counters.preemptions_swap}
        assert kinds[preemption] == counters.preemptions > 0
        is_swap = preemption == "swap"
        assert (counters.blocks_swapped_out > 0) == (counters.blocks_swapped_in > 0) == is_swap
        await fleet.wait_until_quiet()
