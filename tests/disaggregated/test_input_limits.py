"""Sizes at and around P's, D's and the context's limit, and inputs no router would send."""

from pathlib import Path

import grpc
import pytest

from disaggregated.pair import Pair, Reply, running_pair, sequence
from disaggregated.prompts import expected_tokens, prompt_of
from octavo.internal.v1alpha1 import worker_pb2

INVALID = grpc.StatusCode.INVALID_ARGUMENT
VOCABULARY = 384


async def refusals(pair: Pair, spec: worker_pb2.SequenceSpec) -> list[grpc.aio.AioRpcError]:
    """What each worker alone says to a request that it must refuse."""
    errors = []
    for run in (
        pair.run_prefill(spec, Reply(), will_be_pulled=False),
        pair.run_decode(pair.start(spec), Reply()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await run
        errors.append(failed.value)
    return errors


async def test_prompts_at_the_limit_of_the_prefill_pool(tiny_model: Path) -> None:
    async with running_pair(tiny_model, {"num_blocks": 4}, {"num_blocks": 16}) as pair:
        for length in (62, 63):
            reply = await pair.generate(sequence(prompt_of(length)))
            assert reply.tokens == expected_tokens(tiny_model, prompt_of(length))
        for length in (64, 65):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await pair.generate(sequence(prompt_of(length)))
            assert failed.value.code() is INVALID and "64" in str(failed.value.details())
        await pair.wait_until_quiet()


async def test_requests_at_the_limit_of_the_decode_pool(tiny_model: Path) -> None:
    async with running_pair(tiny_model, {"num_blocks": 16}, {"num_blocks": 5}) as pair:
        for length in (71, 72):
            reply = await pair.generate(sequence(prompt_of(length)))
            assert reply.tokens == expected_tokens(tiny_model, prompt_of(length))
        for length in (73, 79, 80, 81):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await pair.generate(sequence(prompt_of(length)))
            assert failed.value.code() is INVALID and "80" in str(failed.value.details())
        await pair.wait_until_quiet()


async def test_requests_at_the_limit_of_the_context(tiny_model: Path) -> None:
    settings = {"max_model_len": 50}
    async with running_pair(tiny_model, settings, settings) as pair:
        reply = await pair.generate(sequence(prompt_of(42)))
        assert reply.tokens == expected_tokens(tiny_model, prompt_of(42))
        for error in await refusals(pair, sequence(prompt_of(43))):
            assert error.code() is INVALID and "50" in str(error.details())
        await pair.wait_until_quiet()
        assert pair.decode.engine.counters().requests == 1


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([], "prompt_token_ids"),
        ([VOCABULARY], "prompt_token_ids"),
        ([2**31], "prompt_token_ids"),
        ([2**32 - 1], "prompt_token_ids"),
    ],
)
async def test_prompts_outside_the_vocabulary_are_refused(
    tiny_model: Path, prompt: list[int], field: str
) -> None:
    async with running_pair(tiny_model) as pair:
        for error in await refusals(pair, sequence(prompt)):
            assert error.code() is INVALID and field in str(error.details())
        reply = await pair.generate(sequence([VOCABULARY - 1]))
        assert reply.tokens == expected_tokens(tiny_model, [VOCABULARY - 1])


def broken_specs() -> dict[str, worker_pb2.SequenceSpec]:
    """One broken field each, under its name."""
    broken = {
        name: sequence([5, 6, 7])
        for name in (
            "max_tokens",
            "temperature",
            "top_p",
            "min_p",
            "top_k",
            "seed",
            "stop_token_ids",
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
            "bad_words",
            "bad_words_ids",
            "allowed_token_ids",
            "output.logprobs",
            "prompt_logprobs",
            "group_key",
            "request_id",
            "output_token_ids",
        )
    }
    broken["max_tokens"].sampling.max_tokens = 0
    broken["temperature"].sampling.temperature = float("nan")
    broken["top_p"].sampling.top_p = 1.5
    broken["min_p"].sampling.min_p = -0.5
    broken["top_k"].sampling.top_k = -2
    broken["seed"].sampling.ClearField("seed")
    broken["stop_token_ids"].sampling.stop_token_ids.append(VOCABULARY)
    broken["min_tokens"].sampling.min_tokens = 9
    broken["presence_penalty"].sampling.presence_penalty = 2.5
    broken["frequency_penalty"].sampling.frequency_penalty = float("inf")
    broken["repetition_penalty"].sampling.repetition_penalty = 0.0
    broken["logit_bias"].sampling.logit_bias[VOCABULARY] = 1.0
    broken["bad_words"].sampling.bad_words.append("text")
    broken["bad_words_ids"].sampling.bad_words_ids.add(ids=[VOCABULARY])
    broken["allowed_token_ids"].sampling.allowed_token_ids.append(VOCABULARY)
    broken["output.logprobs"].output.logprobs = 21
    broken["prompt_logprobs"].output.prompt_logprobs = 21
    broken["group_key"].group_key = b"short"
    broken["request_id"].key.request_id = ""
    broken["output_token_ids"].output_token_ids.append(VOCABULARY)
    return broken


async def test_every_broken_field_is_named_and_neither_worker_minds(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        for name, spec in broken_specs().items():
            for error in await refusals(pair, spec):
                assert error.code() is INVALID and name in str(error.details())
        for too_long in (2**31 - 1, 2**31, 2**32 - 1):
            spec = sequence([5])
            spec.sampling.max_tokens = too_long
            for error in await refusals(pair, spec):
                assert error.code() is INVALID and "max_tokens" in str(error.details())
        many = sequence([5])
        many.sampling.n = 129
        for error in await refusals(pair, many):
            assert error.code() is INVALID and "n must be" in str(error.details())
        reply = await pair.generate(sequence([5]))
        assert reply.tokens == expected_tokens(tiny_model, [5])
        await pair.wait_until_quiet()
