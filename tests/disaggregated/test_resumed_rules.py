"""A later attempt brings tokens of an earlier one: rules count them, limits hold, none is told."""

from pathlib import Path

import grpc
import pytest

from disaggregated.pair import running_pair, sequence
from octavo.inference.v1 import inference_pb2
from octavo.rpc.sampling import output_to_proto
from octavo.sampling_params import SamplingParams

SAMPLING = SamplingParams(
    seed=3,
    max_tokens=24,
    min_tokens=12,
    ignore_eos=True,
    stop_token_ids=tuple(range(3, 64)),
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    logit_bias={70: 3.0, 80: 3.0, 90: 3.0},
    bad_words_ids=((70, 80), (80, 90), (100,)),
    logprobs=2,
)
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 100, "maximum": 99999},
        "b": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
PROMPT = [5 + 7 * i % 350 for i in range(40)]


@pytest.mark.parametrize("way", ["pulled", "local"])
async def test_a_resumed_output_goes_on_as_it_would_have(tiny_model: Path, way: str) -> None:
    async with running_pair(tiny_model) as pair:
        run = pair.generate if way == "pulled" else pair.run_local
        whole = sequence(PROMPT, SAMPLING)
        whole.output.CopyFrom(output_to_proto(SAMPLING))
        first = await run(whole)
        tokens = first.tokens
        assert len(tokens) > 12
        logprobs = [value for delta in first.deltas for value in delta.logprobs.logprobs]
        assert len(logprobs) == len(tokens)
        for known in (1, 5, 11, 12, len(tokens) - 2):
            spec = sequence(PROMPT, SAMPLING, output=tokens[:known])
            spec.output.CopyFrom(output_to_proto(SAMPLING))
            reply = await run(spec)
            assert reply.tokens == tokens[known:], known
            assert reply.deltas[0].first_index == known
            told = [value for delta in reply.deltas for value in delta.logprobs.logprobs]
            assert told == pytest.approx(logprobs[known:], abs=2e-5)
        await pair.wait_until_quiet()


@pytest.mark.parametrize("way", ["pulled", "local"])
async def test_a_resumed_output_goes_on_in_its_grammar(tiny_model: Path, way: str) -> None:
    """It is replayed, so that the text as a whole is what was asked for."""
    sampling = SamplingParams(seed=5, max_tokens=120, json_schema=SCHEMA)
    async with running_pair(tiny_model) as pair:
        run = pair.generate if way == "pulled" else pair.run_local
        whole = await run(sequence(PROMPT, sampling))
        tokens = whole.tokens
        assert whole.finish_reason == inference_pb2.FINISH_REASON_STOP and len(tokens) > 12
        for known in (1, 2, 9, len(tokens) - 2):
            reply = await run(sequence(PROMPT, sampling, output=tokens[:known]))
            assert reply.tokens == tokens[known:], known
        wrong = [tokens[0], *tokens[:3]]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await run(sequence(PROMPT, sampling, output=wrong))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "json_schema does not allow output token 1" in (refused.value.details() or "")
        await pair.wait_until_quiet()
