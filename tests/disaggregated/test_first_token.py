"""Outputs of one, two and three tokens, and first tokens that end the sequence (case C30)."""

from pathlib import Path

import pytest

from disaggregated.pair import running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo.inference.v1 import inference_pb2
from octavo.sampling_params import SamplingParams

LENGTH = inference_pb2.FINISH_REASON_LENGTH
STOP = inference_pb2.FINISH_REASON_STOP


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_short_outputs_are_exact(tiny_model: Path, max_tokens: int) -> None:
    async with running_pair(tiny_model) as pair:
        for length in (15, 16, 17, 70):
            prompt = prompt_of(length)
            reply = await pair.generate(sequence(prompt, greedy(max_tokens)))
            assert reply.tokens == expected_tokens(tiny_model, prompt, max_tokens)
            assert reply.finish_reason == LENGTH
            assert reply.first_token is not None
            assert (reply.first_token.finish_reason == LENGTH) == (max_tokens == 1)
        if max_tokens == 1:
            assert pair.decode.streams.num_served == 0
        await pair.wait_until_quiet()


@pytest.mark.parametrize("length", [1, 16, 40, 64])
async def test_an_end_of_sequence_first_needs_no_decode_step(
    counting_model: Path, length: int
) -> None:
    async with running_pair(counting_model, {"max_num_batched_tokens": 16}) as pair:
        reply = await pair.generate(sequence([5] * length, greedy(9)))
        assert reply.tokens == reply.tokens[:1] and reply.finish_reason == STOP
        assert len(reply.deltas) == 1 and reply.deltas[0].first_index == 0
        assert reply.completed is not None and reply.prefill_completed is not None
        await pair.wait_until_quiet()
        assert pair.decode.engine.counters().tokens_generated == 0


async def test_a_stop_token_first_ends_both_streams_well(counting_model: Path) -> None:
    async with running_pair(counting_model) as pair:
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=9, stop_token_ids=(21,))
        reply = await pair.generate(sequence([7, 20], sampling))
        assert reply.tokens == [21] and reply.finish_reason == STOP
        await pair.wait_until_quiet()


async def test_the_counting_model_counts_to_its_end(counting_model: Path) -> None:
    async with running_pair(counting_model) as pair:
        reply = await pair.generate(sequence([7, 90], greedy(50)))
        assert reply.tokens[:9] == list(range(91, 100))
        assert len(reply.tokens) == 10 and reply.finish_reason == STOP
