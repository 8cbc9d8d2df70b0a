"""What may come and what may not, from scripted models through the whole service: C15, C23, C27."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints import scripted
from end_to_end.test_text import PROMPT, WAYS, ask, ids_of, speaker
from end_to_end.vocabulary import START, saying, word_tokenizer
from octavo.client import AsyncClient, OctavoError
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

END_OF_TEXT, IM_START, IM_END = 0, 1, 2


@WAYS
async def test_a_stop_string_waits_for_min_tokens(tmp_path: Path, local_tokens: int) -> None:
    """C15: "test", newline, over and over."""
    tokenizer = word_tokenizer(["test"])
    word, newline = ids_of(tokenizer, ["test", "\n"])
    table = {START: word, word: newline, newline: word}
    model = scripted(tmp_path / "m", table, tokenizer=tokenizer)
    async with speaker(model, local_tokens) as (_, client):
        for min_tokens, num_tokens in ((0, 2), (1, 2), (2, 4), (19, 20), (20, 22)):
            reply = await ask(client, stop=["\n"], min_tokens=min_tokens)
            assert (len(reply.token_ids), reply.matched_stop) == (num_tokens, "\n")
            assert reply.text == "test\n" * (num_tokens // 2 - 1) + "test"
        whole = await ask(client, stop=["\n"], min_tokens=60)
        assert (whole.text, whole.finish_reason) == ("test\n" * 30, "length")


@WAYS
@pytest.mark.parametrize("wanted", [IM_END, END_OF_TEXT])
async def test_no_end_of_sequence_of_any_kind_before_min_tokens(
    tmp_path: Path, local_tokens: int, wanted: int
) -> None:
    """C15: a model of two end-of-sequence ids that always wants one of them."""
    model = scripted(tmp_path / "m", {}, default=wanted, eos_token_id=[IM_END, END_OF_TEXT])
    async with speaker(model, local_tokens) as (_, client):
        for min_tokens in (0, 1, 5):
            reply = await ask(client, min_tokens=min_tokens)
            # The first of all others, which are equally likely.
            assert reply.token_ids == [IM_START] * min_tokens + [wanted]
            assert reply.finish_reason == "stop"
        with_stop_ids = await ask(client, min_tokens=3, stop_token_ids=[IM_START])
        assert with_stop_ids.token_ids == [3, 3, 3, wanted]
        ignored = await ask(client, ignore_eos=True, max_tokens=50)
        assert (ignored.token_ids, ignored.finish_reason) == ([wanted] * 50, "length")
        named = await ask(client, ignore_eos=True, stop_token_ids=[wanted])
        assert (named.token_ids, named.matched_stop) == ([wanted], wanted)
        both = await ask(client, ignore_eos=True, stop_token_ids=[wanted], min_tokens=2)
        assert len(both.token_ids) == 3 and both.token_ids[-1] == wanted


@WAYS
async def test_banned_words_do_not_come_in_either_form_and_others_do(
    tmp_path: Path, local_tokens: int
) -> None:
    """C23: one token with its space, several without; a sequence of two; a prefix of another."""
    words = [" described", " at", " the", " them", " in", " it", "x"]
    tokenizer = word_tokenizer(words)
    described, at, the, them, inside, it, other = ids_of(tokenizer, words)
    order = [it, described, at, the, them, inside]
    model = saying(tmp_path / "m", tokenizer, order)
    fallback: dict[str, Any] = {"logit_bias": {other: 1.0}}  # what comes instead of a banned token
    async with speaker(model, local_tokens) as (_, client):
        assert (await ask(client)).token_ids == [*order, IM_END]
        for word in ("described", " described"):
            reply = await ask(client, bad_words=[word], **fallback)
            assert reply.token_ids == [it, other, IM_END] and "described" not in reply.text
        pair = await ask(client, bad_words=["at the"], **fallback)
        assert pair.token_ids == [it, described, at, other, IM_END]
        alone = await ask(client, bad_words=["in the", "the m"], **fallback)
        assert alone.token_ids == [*order, IM_END], "a part of a sequence is no reason"
        prefix = await ask(client, [*PROMPT[:-1], the], bad_words=["the"], **fallback)
        assert prefix.token_ids == [them, inside, IM_END]
        begun = await ask(client, [*PROMPT[:-1], at], bad_words=["at the"], **fallback)
        assert begun.token_ids == [other, IM_END], "the prompt may begin it"
        # Bare, it is several tokens: the last of them is what may not come.
        bare = tokenizer.encode("described", add_special_tokens=False).ids
        assert len(bare) > 1
        forced = await ask(
            client, bad_words=["described"], allowed_token_ids=[*bare, IM_END], max_tokens=40
        )
        assert "described" not in forced.text


@WAYS
async def test_the_allowed_and_the_biased(tmp_path: Path, local_tokens: int) -> None:
    """C23: within the list, without what is banned; +100 and -100 are obeyed."""
    model = scripted(tmp_path / "m", {START: 40, 40: 41, 41: 42})
    async with speaker(model, local_tokens) as (_, client):
        assert (await ask(client)).token_ids == [40, 41, 42, IM_END]
        inside = await ask(client, allowed_token_ids=[40, 42, IM_END])
        assert inside.token_ids == [40, IM_END]
        banned = await ask(client, allowed_token_ids=[40, 42], bad_words_ids=[[40]], max_tokens=3)
        assert banned.token_ids == [42] * 3
        biased = await ask(client, logit_bias={99: 100.0}, max_tokens=5)
        assert biased.token_ids == [99] * 5
        against = await ask(client, logit_bias={41: -100.0}, max_tokens=2)
        assert against.token_ids[0] == 40 and against.token_ids[1] != 41
        for temperature in (0.0, 1.0):
            with pytest.raises(OctavoError, match="no token is left to choose") as refused:
                await client.generate(
                    PROMPT,
                    allowed_token_ids=[40],
                    bad_words_ids=[[40, 40]],
                    temperature=temperature,
                )
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (await ask(client)).token_ids == [40, 41, 42, IM_END]


@WAYS
async def test_usage_comes_once_and_counts_what_was_sent(tmp_path: Path, local_tokens: int) -> None:
    """C27, one sample: ended by a token, a stop string and length, unary and streamed."""
    words = ["a", "b", "c", "d"]
    tokenizer = word_tokenizer(words)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, words))
    async with speaker(model, local_tokens) as (fleet, client):
        assert isinstance(client, AsyncClient)
        async with grpc.aio.insecure_channel(fleet.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            for fields, num_tokens in (
                ({}, 5),
                ({"stop": ["bc"]}, 3),
                ({"max_tokens": 2}, 2),
                ({"max_tokens": 1}, 1),
            ):
                request = inference_pb2.GenerateRequest(
                    token_ids=inference_pb2.TokenIds(ids=PROMPT),
                    sampling=inference_pb2.SamplingParams(temperature=0, **fields),
                    output=inference_pb2.OutputOptions(logprobs=2),
                )
                stream = stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request))
                messages = [message async for message in stream]
                usages = [m.completed.usage for m in messages if m.HasField("completed")]
                assert len(usages) == 1 and messages[-1].HasField("completed")
                whole = await stub.Generate(request)
                for usage in (usages[0], whole.usage):
                    assert usage.prompt_tokens == len(PROMPT)
                    assert usage.completion_tokens == num_tokens
                sent = [i for m in messages for i in m.delta.token_ids]
                assert len(sent) == num_tokens and sent == list(whole.candidates[0].token_ids)
                logprobs = [v for m in messages for v in m.delta.logprobs.logprobs]
                assert logprobs == list(whole.candidates[0].logprobs.logprobs)
                assert len(logprobs) == num_tokens
