"""Bad requests are refused by name, before any token, and never reach a worker."""

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.inference.v1.inference_pb2 import (
    BeamSearch,
    ChatMessages,
    ChoiceList,
    GenerateRequest,
    OutputOptions,
    SamplingParams,
    TokenIds,
)
from scripted_workers import EOS

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]

VOCAB = 384
CONTEXT = 1024
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNSUPPORTED = grpc.StatusCode.UNIMPLEMENTED

# Every scalar of SamplingParams: values that are refused, and values that are taken.
REFUSED: dict[str, list[Any]] = {
    "max_tokens": [0, CONTEXT - 1, 2**31, 2**32 - 1],
    "temperature": [-1e-9, -1.0, math.nan, math.inf, -math.inf],
    "top_p": [-0.1, 1.1, math.nan, math.inf, -math.inf],
    "top_k": [-2, -(2**31)],
    "min_p": [-0.1, 1.1, math.nan, math.inf],
    "min_tokens": [257, 2**31],  # an unset max_tokens is 256
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf, -math.inf],
    "frequency_penalty": [-2.1, 2.1, math.nan, math.inf, -math.inf],
    "repetition_penalty": [0.0, -1.0, 1001.0, math.nan, math.inf],
    "logit_bias": [{5: 101.0}, {5: -101.0}, {5: math.nan}, {VOCAB: 1.0}, {2**32 - 1: 1.0}],
    "bad_words": [[""], ["x" * 257], ["x"] * 257],
    "bad_words_ids": [[[]], [[VOCAB]], [[1] * 513], [[1]] * 1025, [[i] for i in range(VOCAB)]],
    "allowed_token_ids": [[VOCAB], [2**32 - 1], [1] * 65537],
    "seed": [],
    "stop": [[""], ["x" * 257], ["x"] * 17],
    "stop_token_ids": [[VOCAB], [2**31], [2**32 - 1], [1] * 65],
    "ignore_eos": [],
    "json_schema": ["", "[]", "{", '{"if": {}}', '{"type": "x"}', "{" + " " * 2**18 + "}"],
    "regex": ["", "(", "(?=a)", "a" * (2**18 + 1)],
    "ebnf_grammar": ["", "x", 'start: "a"\nstart: "b"', "root ::= (", "start: start"],
    "choice": [[], [""], ["x" * 1025], ["x"] * 1025],
    "json_object": [],
    "n": [0, 129, 2**32 - 1],
    "best_of": [0, 129, 2**32 - 1],
    "beam_search": [],  # its fields have names of their own
    "prompt_lookup": [],
}
TAKEN: dict[str, list[Any]] = {
    "max_tokens": [1, 2],
    "temperature": [0.0, 1e-45, 1e-8, 1e-4, 2.0, 1e30, 3e38],
    "top_p": [0.0, 1e-9, 1.0],
    "top_k": [-1, 0, 1, VOCAB, VOCAB + 1],
    "min_p": [0.0, 1.0],
    "min_tokens": [0, 256],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "frequency_penalty": [-2.0, 0.0, 2.0],
    "repetition_penalty": [0.001, 1.0, 1000.0],
    "logit_bias": [{VOCAB - 1: 100.0, 0: -100.0}],
    "bad_words": [["x" * 256], ["x", "y"] * 128],
    "bad_words_ids": [[[VOCAB - 1]], [[1] * 512], [[1, 2]] * 1024],
    "allowed_token_ids": [[0], [VOCAB - 1]],
    "seed": [0, 2**64 - 1],
    "stop": [["x" * 256], ["x"] * 16],
    "stop_token_ids": [[0], [VOCAB - 1], [1] * 64],
    "ignore_eos": [True, False],
    "json_schema": ["{}", "true", '{"type": "string"}', "{" + " " * (2**18 - 2) + "}"],
    "regex": ["a", "^a|b$", "(a+)+b"],
    "ebnf_grammar": ['start: "a"', 'root ::= "a"', "start: <|im_start|>"],
    "choice": [["a"], ["x" * 1024], ["x", "é🙂"] * 512],
    "json_object": [True, False],
    "n": [1],  # scripted workers have one sample
    "best_of": [1],
    "beam_search": [],  # and do not search
    "prompt_lookup": [True, False],
}


def test_tables_cover_every_sampling_field() -> None:
    names = {field.name for field in SamplingParams.DESCRIPTOR.fields}
    assert names == REFUSED.keys() == TAKEN.keys()
    for field in SamplingParams.DESCRIPTOR.fields:
        if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
            values = REFUSED.get(field.name, [math.nan])
            assert any(math.isnan(value) for value in values), field.name


def sampling_of(name: str, value: Any) -> SamplingParams:
    if name == "bad_words_ids":
        value = [TokenIds(ids=token_ids) for token_ids in value]
    elif name == "choice":
        value = ChoiceList(values=value)
    return SamplingParams(**{name: value})


def ids(*token_ids: int) -> TokenIds:
    return TokenIds(ids=token_ids)


def bad_requests() -> list[tuple[GenerateRequest, grpc.StatusCode, str]]:
    prompt = ids(5, 6)
    cases = [
        (GenerateRequest(), INVALID, "input"),
        (GenerateRequest(token_ids=ids()), INVALID, "token_ids"),
        (GenerateRequest(text=""), INVALID, "text"),
        (GenerateRequest(text="", add_special_tokens=False), INVALID, "text"),
        (GenerateRequest(chat=ChatMessages()), INVALID, "chat"),
        (GenerateRequest(token_ids=ids(VOCAB)), INVALID, "token_ids"),
        (GenerateRequest(token_ids=ids(5, 2**31)), INVALID, "token_ids"),
        (GenerateRequest(token_ids=ids(5, 2**32 - 1)), INVALID, "token_ids"),
        (GenerateRequest(token_ids=ids(*[5] * CONTEXT)), INVALID, "token_ids"),
        (GenerateRequest(text="x" * (8 * CONTEXT + 1)), INVALID, "text"),
        (GenerateRequest(token_ids=prompt, model="gpt"), grpc.StatusCode.NOT_FOUND, "model"),
        (GenerateRequest(token_ids=prompt, priority=1), UNSUPPORTED, "priority"),
        (
            GenerateRequest(token_ids=prompt, lora_adapter="a"),
            grpc.StatusCode.NOT_FOUND,
            "lora_adapter",
        ),
        (GenerateRequest(token_ids=prompt, cache_salt="x" * 257), INVALID, "cache_salt"),
        (GenerateRequest(token_ids=prompt, request_id="x" * 257), INVALID, "request_id"),
    ]
    for name in ("logprobs", "prompt_logprobs"):
        for value in (21, 129, 2**32 - 1):
            output = OutputOptions(**{name: value})
            cases.append(
                (GenerateRequest(token_ids=prompt, output=output), INVALID, f"output.{name}")
            )
    for name, values in REFUSED.items():
        for value in values:
            sampling = sampling_of(name, value)
            wrong = GenerateRequest(token_ids=prompt, sampling=sampling)
            cases.append((wrong, INVALID, f"sampling.{name}"))
    for width in (0, 17):
        search = SamplingParams(beam_search=BeamSearch(width=width))
        wrong = GenerateRequest(token_ids=prompt, sampling=search)
        cases.append((wrong, INVALID, "sampling.beam_search.width"))
    for name in ("json_schema", "regex", "ebnf_grammar"):
        for value in TAKEN[name]:
            beside = SamplingParams(ignore_eos=True, **{name: value})
            wrong = GenerateRequest(token_ids=prompt, sampling=beside)
            cases.append((wrong, INVALID, "sampling.ignore_eos"))
    return cases


async def test_bad_requests_are_refused_by_name_and_reach_no_worker(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet([70, EOS]) as fleet:
        for bad, code, field in bad_requests():
            print(bad)  # shown when it was not refused
            error = await refusal(fleet.stub.Generate(bad, timeout=5))
            assert (error.code(), named_field(error)) == (code, field), (bad, error.details())
            streamed = await refusal(fleet.stream(bad))
            assert streamed.details() == error.details()
            assert not fleet.prefill.specs and not fleet.decode.specs
            assert fleet.router.admission.num_queued_tokens == 0
        canary = await fleet.stub.Generate(GenerateRequest(token_ids=ids(VOCAB - 1)), timeout=5)
        assert list(canary.candidates[0].token_ids) == [70, EOS]


async def test_limits_themselves_are_taken(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        for name, values in TAKEN.items():
            for value in values:
                good = GenerateRequest(
                    token_ids=ids(0, VOCAB - 1), sampling=sampling_of(name, value)
                )
                await fleet.stub.Generate(good, timeout=5)
        last = GenerateRequest(
            token_ids=ids(*[5] * (CONTEXT - 1)), sampling=SamplingParams(max_tokens=1)
        )
        whole = await fleet.stub.Generate(last, timeout=5)
        assert whole.usage.prompt_tokens == CONTEXT - 1


async def test_off_values_of_later_fields_are_taken(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        sampling = SamplingParams(n=1)
        await fleet.stub.Generate(GenerateRequest(token_ids=ids(5), sampling=sampling), timeout=5)


async def test_an_empty_choice_is_refused(start_fleet: StartFleet) -> None:
    """C23: what is allowed is banned as well, or would end an output that may not end yet."""
    empty = [
        SamplingParams(allowed_token_ids=[5, 6], bad_words_ids=[ids(5), ids(6)]),
        SamplingParams(allowed_token_ids=[EOS], min_tokens=1),
        SamplingParams(allowed_token_ids=[EOS, 5], stop_token_ids=[5], min_tokens=1),
    ]
    async with start_fleet([70, EOS]) as fleet:
        for sampling in empty:
            bad = GenerateRequest(token_ids=ids(5), sampling=sampling)
            error = await refusal(fleet.stub.Generate(bad, timeout=5))
            assert (error.code(), named_field(error)) == (INVALID, "sampling.allowed_token_ids")
        one_left = SamplingParams(
            allowed_token_ids=[EOS, 5], bad_words_ids=[ids(6)], min_tokens=1, ignore_eos=True
        )
        good = GenerateRequest(token_ids=ids(5), sampling=one_left)
        await fleet.stub.Generate(good, timeout=5)


def named_field(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info.metadata["field"]


async def refusal(answer: Awaitable[object]) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    try:
        reply = await answer
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"not refused: {reply}")
