"""What a client gets: one stream of tokens from two workers, cut and counted."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from octavo.inference.v1 import inference_pb2
from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_STOP_SEQUENCE,
    GenerateRequest,
    OutputOptions,
    SamplingParams,
    TokenIds,
)
from octavo.router.model import ServedModel
from scripted_workers import EOS

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]
Responses = list[inference_pb2.StreamGenerateResponse]

PROMPT = TokenIds(ids=range(3, 103))  # longer than decode workers compute themselves


def request(**fields: Any) -> GenerateRequest:
    sampling = SamplingParams(**fields)
    return GenerateRequest(token_ids=PROMPT, sampling=sampling)


def joined(messages: Responses) -> tuple[str, list[int]]:
    text = "".join(message.delta.text for message in messages)
    return text, [token_id for message in messages for token_id in message.delta.token_ids]


def finished(messages: Responses) -> inference_pb2.StreamGenerateResponse.Finished:
    [found] = [message.finished for message in messages if message.HasField("finished")]
    return found


async def test_every_token_comes_once_and_in_order(start_fleet: StartFleet) -> None:
    tokens = list(range(40, 60))
    async with start_fleet([*tokens, EOS]) as fleet:
        messages = await fleet.stream(request())
        for part, position in (("started", 0), ("completed", len(messages) - 1)):
            found = [index for index, message in enumerate(messages) if message.HasField(part)]
            assert found == [position]
        assert [message.sequence for message in messages] == list(range(len(messages)))
        assert joined(messages)[1] == [*tokens, EOS]
        assert finished(messages).finish_reason == FINISH_REASON_STOP
        assert finished(messages).matched_stop_token_id == EOS
        await fleet.quiet()


async def test_first_token_does_not_wait_for_the_decode_worker(start_fleet: StartFleet) -> None:
    async with start_fleet([40, 41, EOS]) as fleet:
        release = fleet.decode.hold_before(0)
        call = fleet.stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request()))
        messages = aiter(call)
        first = await anext(messages)
        assert first.HasField("started") and list(first.delta.token_ids) == [40]
        release.set()
        rest = [message async for message in messages]
        assert joined(rest)[1] == [41, EOS]


async def test_first_token_may_come_from_the_decode_worker(start_fleet: StartFleet) -> None:
    async with start_fleet([40, 41, EOS]) as fleet:
        fleet.prefill.hold_before(0)
        call = fleet.stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request()))
        seen: list[int] = []
        async for message in call:
            seen += message.delta.token_ids
            if len(seen) == 3:
                break
        call.cancel()
        assert seen == [40, 41, EOS]


async def test_unary_equals_the_joined_stream(start_fleet: StartFleet) -> None:
    async with start_fleet([*range(70, 90), EOS]) as fleet:
        for fields in ({}, {"max_tokens": 5}, {"stop": ["x"]}, {"stop_token_ids": [75]}):
            messages = await fleet.stream(request(seed=1, **fields))
            whole = await fleet.stub.Generate(request(seed=1, **fields))
            [candidate] = whole.candidates
            assert (candidate.text, list(candidate.token_ids)) == joined(messages)
            assert candidate.finish_reason == finished(messages).finish_reason
            assert whole.usage == messages[-1].completed.usage


async def test_usage_counts_cached_and_transferred_tokens(start_fleet: StartFleet) -> None:
    async with start_fleet([40, 41, 42]) as fleet:
        fleet.prefill.cached_prompt_tokens = 48
        fleet.decode.cached_prompt_tokens = 16
        release = fleet.decode.hold_before(0)
        call = fleet.stub.StreamGenerate(
            inference_pb2.StreamGenerateRequest(request=request(max_tokens=3))
        )
        messages = []
        async for message in call:
            messages.append(message)
            release.set()
        assert messages[0].started.cached_prompt_tokens == 48
        usage = messages[-1].completed.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (100, 3)
        # Two of the prompt's seven blocks of 16 were not pulled, whatever the worker says of it.
        assert (usage.cached_prompt_tokens, usage.transferred_prompt_tokens) == (48, 84)
        assert (usage.cached_on_prefill_worker, usage.cached_on_decode_worker) == (48, 16)
        timing = messages[-1].completed.timing
        assert (timing.prefill_worker, timing.decode_worker) == ("p0", "d0")
        assert timing.total.ToNanoseconds() >= timing.time_to_first_token.ToNanoseconds() > 0


async def test_max_tokens_1_has_no_decode_leg(start_fleet: StartFleet) -> None:
    async with start_fleet([40, 41, EOS]) as fleet:
        messages = await fleet.stream(request(max_tokens=1))
        assert joined(messages)[1] == [40]
        assert finished(messages).finish_reason == FINISH_REASON_LENGTH
        assert not fleet.decode.specs
        assert messages[-1].completed.timing.decode_worker == ""
        await fleet.quiet()


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_few_tokens_are_exactly_that_many(start_fleet: StartFleet, max_tokens: int) -> None:
    async with start_fleet([40, 41, 42, 43]) as fleet:
        messages = await fleet.stream(request(max_tokens=max_tokens))
        assert joined(messages)[1] == [40, 41, 42][:max_tokens]
        assert messages[-1].completed.usage.completion_tokens == max_tokens
        await fleet.quiet()


async def test_first_token_that_ends_the_request_ends_the_decode_leg(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet([EOS, 41]) as fleet:
        fleet.decode.hold_before(0)  # its leg would stay open for ever
        messages = await fleet.stream(request())
        assert joined(messages) == ("", [EOS])
        assert finished(messages).finish_reason == FINISH_REASON_STOP
        await fleet.quiet()


async def test_short_prompt_needs_no_prefill_worker(start_fleet: StartFleet) -> None:
    async with start_fleet([40, 41, EOS]) as fleet:
        short = GenerateRequest(token_ids=TokenIds(ids=range(3, 30)))
        messages = await fleet.stream(short)
        assert joined(messages)[1] == [40, 41, EOS]
        assert not fleet.prefill.specs
        assert not fleet.decode.starts[0].HasField("kv")
        timing = messages[-1].completed.timing
        assert (timing.prefill_worker, timing.decode_worker) == ("", "d0")


async def test_stop_string_is_cut_and_the_worker_told(start_fleet: StartFleet) -> None:
    async with start_fleet([]) as fleet:
        tokens = fleet.ids("The capital is Paris, of course.")
        for worker in (fleet.prefill, fleet.decode):
            worker.token_ids = tokens * 50
        for stop, text in (
            ("Pari", "The capital is "),
            ("is P", "The capital "),
            ("s Par", "The capital i"),
            ("capital is", "The "),
        ):
            messages = await fleet.stream(request(stop=[stop]))
            assert joined(messages)[0] == text
            assert finished(messages).finish_reason == FINISH_REASON_STOP_SEQUENCE
            assert finished(messages).matched_stop_text == stop
            sent = joined(messages)[1]
            assert tokens[: len(sent)] == sent  # ends with the token that completed the match
            assert stop in fleet.model.tokenizer.decode(sent)
            assert stop not in fleet.model.tokenizer.decode(sent[:-1])
            assert messages[-1].completed.usage.completion_tokens == len(sent)
            with_stop = request(stop=[stop])
            with_stop.output.include_stop_text = True
            assert joined(await fleet.stream(with_stop))[0] == text + stop
        assert fleet.decode.num_stops > 0
        await fleet.quiet()


async def test_held_text_is_sent_when_it_is_innocent(start_fleet: StartFleet) -> None:
    async with start_fleet([]) as fleet:
        tokens = fleet.ids("ABCDEFGHIJKL")

        async def text(stop: list[str], ending: list[int], **fields: Any) -> str:
            for worker in (fleet.prefill, fleet.decode):
                worker.token_ids = tokens + ending
            streamed = joined(await fleet.stream(request(stop=stop, **fields)))[0]
            whole = await fleet.stub.Generate(request(stop=stop, **fields))
            assert whole.candidates[0].text == streamed
            return streamed

        assert await text(["DEFGHIJ"], [EOS]) == "ABC"
        assert await text(["DEFX"], [EOS]) == "ABCDEFGHIJKL"
        assert await text(["DEFGX", "EF"], [EOS]) == "ABCD"
        assert await text(["JKLM"], [EOS]) == "ABCDEFGHIJKL"  # held at EOS
        assert await text(["JKLM"], [EOS], max_tokens=len(tokens)) == "ABCDEFGHIJKL"
        assert await text(["JKLM"], [EOS], stop_token_ids=[tokens[-1]]) == "ABCDEFGHIJKL"


async def test_first_token_that_ends_a_stop_string_ends_both_legs(start_fleet: StartFleet) -> None:
    async with start_fleet([]) as fleet:
        for worker in (fleet.prefill, fleet.decode):
            worker.token_ids = fleet.ids("A") * 100
        fleet.decode.hold_before(0)
        messages = await fleet.stream(request(stop=["A"]))
        assert joined(messages)[0] == ""
        assert finished(messages).finish_reason == FINISH_REASON_STOP_SEQUENCE
        await fleet.quiet()


async def test_output_options_leave_out_what_is_not_wanted(start_fleet: StartFleet) -> None:
    async with start_fleet([70, 71, EOS]) as fleet:
        wanted = request()
        wanted.output.CopyFrom(OutputOptions(include_text=False))
        text, token_ids = joined(await fleet.stream(wanted))
        assert (text, token_ids) == ("", [70, 71, EOS])
        wanted.output.CopyFrom(OutputOptions(include_token_ids=False))
        text, token_ids = joined(await fleet.stream(wanted))
        assert (text, token_ids) == (fleet.model.tokenizer.decode([70, 71]), [])


async def test_workers_get_every_scalar_and_no_text(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    async with start_fleet([70, EOS]) as fleet:
        await fleet.stream(request(stop=["x"], stop_token_ids=[9]))
        for spec in (fleet.prefill.specs[0], fleet.decode.specs[0]):
            sampling = spec.sampling
            for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"):
                assert sampling.HasField(name), name
            assert sampling.HasField("ignore_eos")
            assert sampling.max_tokens == 256
            assert (list(sampling.stop), list(sampling.stop_token_ids)) == ([], [9])
            assert list(spec.prompt_token_ids) == list(PROMPT.ids)
            assert len(spec.group_key) == 32
        assert fleet.prefill.specs[0] == fleet.decode.specs[0]
        kv = fleet.decode.starts[0].kv.prefill
        assert kv == fleet.prefill.facts.worker


async def test_salts_separate_sharing_groups(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        for salt in ("", "X", "a|b", "ab", "\0", "/", "\N{GRINNING FACE}", "X"):
            salted = request()
            salted.cache_salt = salt
            await fleet.stream(salted)
        keys = [spec.group_key for spec in fleet.prefill.specs]
        assert len(set(keys)) == 7 and keys[1] == keys[7]
