"""P and D together give the tokens of `transformers`, however the prompt's KV got to D."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from disaggregated.pair import GREEDY, running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo import LLM
from octavo.checkpoint.fingerprint import model_fingerprint
from octavo.router.worker import WorkerFacts
from octavo.sampling_params import SamplingParams

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 64, 130, 255, 256, 257)


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
async def test_pulled_prompts_decode_exactly(tiny_model: Path, transport: str) -> None:
    settings = {"transport": transport}
    async with running_pair(tiny_model, settings, settings) as pair:
        for length in LENGTHS:
            prompt = prompt_of(length)
            reply = await pair.generate(sequence(prompt))
            assert reply.tokens == expected_tokens(tiny_model, prompt), length
            assert reply.completed is not None and reply.prefill_completed is not None
            assert reply.completed.transferred_blocks == -(-length // 16)
            assert reply.prefill_completed.transferred_blocks == -(-length // 16)
        await pair.wait_until_quiet()
        sent, received = pair.prefill.path.counters, pair.decode.path.counters
        assert sent.blocks == received.blocks > 0
        assert received.bytes == received.blocks * pair.decode.engine.kv_cache.block_bytes
        assert received.digest_mismatches == 0


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
async def test_only_blocks_that_decode_lacks_are_transferred(
    tiny_model: Path, transport: str
) -> None:
    settings = {"transport": transport}
    async with running_pair(tiny_model, settings, settings) as pair:
        prompt = prompt_of(64)
        await pair.generate(sequence(prompt))
        for extended, num_new in ((prompt, 0), (prompt + [5], 1), (prompt + prompt_of(40), 3)):
            reply = await pair.generate(sequence(extended))
            assert reply.tokens == expected_tokens(tiny_model, extended)
            assert reply.completed is not None and reply.completed.transferred_blocks == num_new
            assert reply.started is not None and reply.started.cached_prompt_tokens == 64
        await pair.wait_until_quiet()


@pytest.mark.parametrize("budget", [1, 7, 16, 33])
async def test_chunked_prefill_hands_over_exactly(tiny_model: Path, budget: int) -> None:
    async with running_pair(tiny_model, {"max_num_batched_tokens": budget}) as pair:
        prompt = prompt_of(100)
        reply = await pair.generate(sequence(prompt))
        assert reply.tokens == expected_tokens(tiny_model, prompt)


async def test_many_requests_at_once_through_small_pools(tiny_model: Path) -> None:
    async with running_pair(tiny_model, {"num_blocks": 16}, {"num_blocks": 24}) as pair:
        prompts = [prompt_of(length, seed) for seed in range(4) for length in (3, 16, 50, 117)]
        replies = await asyncio.gather(*(pair.generate(sequence(p, greedy(20))) for p in prompts))
        for prompt, reply in zip(prompts, replies, strict=True):
            assert reply.tokens == expected_tokens(tiny_model, prompt, 20)
        await pair.wait_until_quiet()


async def test_resumed_output_is_not_sampled_again(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        prompt = prompt_of(30)
        whole = expected_tokens(tiny_model, prompt, 12)
        for num_given in (1, 2, 5, 11):
            spec = sequence(prompt, greedy(12), output=whole[:num_given])
            reply = await pair.generate(spec)
            assert reply.tokens == whole[num_given:]
            assert reply.first_token is not None
            assert reply.first_token.first_index == num_given
        await pair.wait_until_quiet()


async def test_seeded_sampling_does_not_depend_on_who_samples(tiny_model: Path) -> None:
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=16)
    settings = {"local_prefill_max_tokens": 64}
    async with running_pair(tiny_model, decode=settings) as pair:
        prompt = prompt_of(40)
        handed_over = await pair.generate(sequence(prompt, sampling))
    async with running_pair(tiny_model, decode=settings) as pair:
        alone = await pair.run_local(sequence(prompt, sampling))
    assert handed_over.tokens == alone.tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_int8_workers_hand_over_what_one_engine_computes(
    tiny_model: Path, dtype: str
) -> None:
    settings: dict[str, Any] = {"quantization": "int8", "dtype": dtype}
    alone = LLM(str(tiny_model), device="cpu", num_blocks=64, **settings)
    async with running_pair(tiny_model, settings, settings) as pair:
        for length in (1, 17, 64, 130):
            prompt = prompt_of(length)
            (output,) = alone.generate(prompt, GREEDY, use_tqdm=False)
            assert (await pair.generate(sequence(prompt))).tokens == output.outputs[0].token_ids
        await pair.wait_until_quiet()


async def test_quantised_workers_differ_in_layout_but_not_in_fingerprint(tiny_model: Path) -> None:
    """So a router takes both kinds, and pairs neither with the other."""
    async with running_pair(tiny_model, decode={"quantization": "int8"}) as pair:
        plain = WorkerFacts.from_proto(pair.prefill.facts)
        quantised = WorkerFacts.from_proto(pair.decode.facts)
        assert plain.model_fingerprint == quantised.model_fingerprint
        assert plain.model_fingerprint == model_fingerprint(tiny_model)
        assert plain.layout != quantised.layout
