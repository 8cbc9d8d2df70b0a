"""Log-probabilities that two legs and two attempts tell: each once, by its place."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest

from octavo.inference.v1.inference_pb2 import GenerateRequest, OutputOptions, TokenIds
from octavo.inference.v1.inference_pb2 import TokenLogprobs as Message
from octavo.internal.v1alpha1.worker_pb2 import PromptLogprobs, TokenDelta
from octavo.router.scores import Scores
from octavo.rpc.errors import DataLoss
from octavo.token_logprobs import TokenLogprobs
from scripted_workers import EOS

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]


def message(*values: float) -> Message:
    """With one likeliest token each, whose id is the value's number."""
    ids = range(len(values))
    return Message(logprobs=values, num_top=1, top_token_ids=ids, top_logprobs=values)


def delta(first_index: int, *values: float) -> TokenDelta:
    return TokenDelta(
        first_index=first_index, token_ids=[5] * len(values), logprobs=message(*values)
    )


def test_tokens_come_by_index_whichever_leg_told_them() -> None:
    scores = Scores(3, wants_tokens=True, wants_prompt=False)
    scores.take_tokens(delta(1, -2.0, -3.0))
    scores.take_tokens(delta(0, -1.0))
    scores.take_tokens(delta(0, -1.0, -2.0))
    assert scores.tokens(0, 0, 0) is None and scores.has_prompt and scores.prompt is None
    assert scores.tokens(0, 1, 3) == TokenLogprobs((-2.0, -3.0), 1, (0, 1), (-2.0, -3.0))


def test_samples_have_their_own() -> None:
    scores = Scores(3, wants_tokens=True, wants_prompt=False)
    for sample, value in ((1, -1.0), (0, -2.0)):
        told = delta(0, value)
        told.sample = sample
        scores.take_tokens(told)
    assert scores.tokens(0, 0, 1) == TokenLogprobs((-2.0,), 1, (0,), (-2.0,))
    assert scores.tokens(1, 0, 1) == TokenLogprobs((-1.0,), 1, (0,), (-1.0,))


def test_the_prompt_is_complete_without_its_first_token_and_told_again_does_no_harm() -> None:
    scores = Scores(5, wants_tokens=False, wants_prompt=True)
    scores.take_prompt(PromptLogprobs(first_index=1, logprobs=message(-1.0, -2.0)))
    assert not scores.has_prompt
    scores.take_prompt(PromptLogprobs(first_index=1, logprobs=message(-1.0, -2.0, -3.0)))
    scores.take_prompt(PromptLogprobs(first_index=4, logprobs=message(-4.0)))
    assert scores.has_prompt and scores.prompt is not None
    assert scores.prompt.logprobs == (-1.0, -2.0, -3.0, -4.0)
    scores.take_tokens(TokenDelta(token_ids=[5]))
    assert scores.tokens(0, 0, 1) is None
    assert Scores(1, wants_tokens=False, wants_prompt=True).prompt == TokenLogprobs(())


def test_what_does_not_fit_together_is_data_loss() -> None:
    scores = Scores(9, wants_tokens=True, wants_prompt=True)
    with pytest.raises(DataLoss, match="from prompt token 2 on came where 1 was due"):
        scores.take_prompt(PromptLogprobs(first_index=2, logprobs=message(-1.0)))
    with pytest.raises(DataLoss, match="1 tokens with 0"):
        scores.take_tokens(TokenDelta(token_ids=[5]))
    with pytest.raises(DataLoss, match="2 likeliest each"):
        scores.take_tokens(TokenDelta(token_ids=[5], logprobs=Message(logprobs=[1], num_top=2)))


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("prompt_logprobs", grpc.StatusCode.UNAVAILABLE, "told no log-probabilities"),
        ("logprobs", grpc.StatusCode.DATA_LOSS, "1 tokens with 0 log-probabilities"),
    ],
)
@pytest.mark.parametrize("length", [5, 100], ids=["local", "pulled"])
async def test_workers_that_tell_none_end_the_request(
    start_fleet: StartFleet, name: str, code: grpc.StatusCode, why: str, length: int
) -> None:
    """Never a reply without what was asked for, and no hang."""
    async with start_fleet([70, 71, EOS]) as fleet:
        request = GenerateRequest(
            token_ids=TokenIds(ids=[5] * length), output=OutputOptions(**{name: 1})
        )
        with pytest.raises(grpc.aio.AioRpcError, match=why) as failed:
            await fleet.stub.Generate(request, timeout=20)
        assert failed.value.code() is code
