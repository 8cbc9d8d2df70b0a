"""Every field of SamplingParams and OutputOptions, in process and through the split, is the same.

The table is checked against the proto: a field that is new there has to come here. Each case is run
alone in one engine, which guesses no tokens; all cases at once through services, cold, cached,
streamed and preempted, must give the same tokens, text, reasons and log-probabilities.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints import tiny_llama
from checkpoints.adapters import tiny_adapter
from end_to_end.field_cases import BASE, CASES
from end_to_end.fleet import running_fleet
from end_to_end.prompts import prompt_of, streamed
from octavo import LLM, SamplingParams
from octavo.client import AsyncClient, Completion, TokenLogprob
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc

PROMPT = prompt_of(37, seed="every field")
CLOSE: dict[str, float] = {"rel": 1e-5, "abs": 1e-5}
PREEMPTIONS = ("recompute", "swap")
SHOWS_ELSEWHERE = {"prompt_lookup", "include_text", "include_token_ids", "echo"}
ALL = [case for cases in CASES.values() for case in cases]
STREAMED = [index for index, case in enumerate(ALL) if "best_of" not in case]


def test_no_field_is_forgotten() -> None:
    sampling = {field.name for field in inference_pb2.SamplingParams.DESCRIPTOR.fields}
    output = {field.name for field in inference_pb2.OutputOptions.DESCRIPTOR.fields}
    assert sampling | output == CASES.keys()


@dataclass(frozen=True)
class Result:
    """What a caller gets, whichever way."""

    token_ids: list[int]
    text: str
    has_stopped: bool
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: Sequence[TokenLogprob | None] | None
    others: list[tuple[list[int], str]]  # tokens and text of further candidates


def in_process(
    llm: LLM, cases: list[dict[str, Any]], lora_adapter: str | None = None
) -> list[Result]:
    """All at once."""
    params = [
        SamplingParams(**{k: v for k, v in (BASE | case).items() if k != "echo"}) for case in cases
    ]
    outputs = llm.generate([PROMPT] * len(cases), params, use_tqdm=False, lora_adapter=lora_adapter)
    assert llm.engine.scheduler.pool.num_held == 0
    results = []
    for output in outputs:
        one, *others = output.outputs
        has_stopped = one.finish_reason == "stop"
        results.append(
            Result(
                one.token_ids,
                one.text,
                has_stopped,
                one.logprobs,
                output.prompt_logprobs,
                [(other.token_ids, other.text) for other in others],
            )
        )
    return results


def served(completion: Completion) -> Result:
    return Result(
        completion.token_ids,
        completion.text,
        completion.finish_reason != "length",
        completion.logprobs,
        completion.prompt_logprobs,
        [(other.token_ids, other.text) for other in completion.candidates[1:]],
    )


def preempted(counters: Any, way: str) -> int:
    """How many preemptions were of this kind; 0 for a way that is none."""
    return int(getattr(counters, f"preemptions_{way}", 0))


def check(
    found: Sequence[Result], expected: Sequence[Result], close: dict[str, float] = CLOSE
) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert (got.token_ids, got.others) == (wanted.token_ids, wanted.others)
        assert (got.text, got.has_stopped) == (wanted.text, wanted.has_stopped)
        check_logprobs(got.logprobs, wanted.logprobs, close)
        check_logprobs(got.prompt_logprobs, wanted.prompt_logprobs, close)


def check_logprobs(
    found: Sequence[TokenLogprob | None] | None,
    expected: Sequence[TokenLogprob | None] | None,
    close: dict[str, float],
) -> None:
    assert (found is None) == (expected is None)
    for got, wanted in zip(found or (), expected or (), strict=True):
        assert (got is None) == (wanted is None)
        if got is None or wanted is None:
            continue
        assert got.token_id == wanted.token_id
        assert got.logprob == pytest.approx(wanted.logprob, **close)
        assert [i for i, _ in got.top] == [i for i, _ in wanted.top]
        assert [v for _, v in got.top] == pytest.approx([v for _, v in wanted.top], **close)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("fields") / "llama")


def make_llm(model: Path, num_blocks: int = 512, **settings: Any) -> LLM:
    settings |= {"dtype": "float32", "device": "cpu", "num_threads": 1}
    return LLM(str(model), num_blocks=num_blocks, **settings)


@pytest.fixture(scope="module")
def alone(llama: Path) -> list[Result]:
    """Each case by itself, with nothing cached and nothing guessed."""
    llm = make_llm(llama, max_draft_tokens=0)
    results = []
    for number, case in enumerate(ALL):
        llm._group_key = bytes([number] * 32)  # nothing of another case is found
        results += in_process(llm, [case])
    assert llm.counters().prompt_tokens_cached == 0
    return results


def test_every_field_does_something(llama: Path, alone: list[Result]) -> None:
    (base,) = in_process(make_llm(llama), [{}])
    assert not base.has_stopped and len(base.token_ids) == 44, "BASE leaves no room to show"
    index = 0
    for name, cases in CASES.items():
        for case in cases:
            assert (alone[index] != base) == (name not in SHOWS_ELSEWHERE), case
            index += 1


def test_in_process_cached_crowded_and_preempted(llama: Path, alone: list[Result]) -> None:
    llm = make_llm(llama)
    check(in_process(llm, ALL), alone)
    check(in_process(llm, ALL), alone)  # cached
    check([in_process(llm, [case])[0] for case in ALL], alone)
    assert llm.counters().prompt_tokens_cached > len(ALL) * 32
    for preemption in PREEMPTIONS:
        tight = make_llm(llama, num_blocks=12, preemption=preemption)
        check(in_process(tight, ALL), alone)
        assert preempted(tight.counters(), preemption) > 0


@pytest.mark.parametrize(
    ("way", "num_pairs"),
    [
        ("pulled", 1),
        ("local", 1),
        *((way, 1) for way in PREEMPTIONS),
        ("swap", 2),
        pytest.param("pulled", 2, marks=pytest.mark.slow),
        pytest.param("recompute", 2, marks=pytest.mark.slow),
    ],
)
async def test_served_it_is_the_same(
    llama: Path, alone: list[Result], num_pairs: int, way: str
) -> None:
    decode: dict[str, Any] = {"local_prefill_max_tokens": 64 if way == "local" else 0}
    is_preempted = way in PREEMPTIONS
    if is_preempted:
        decode |= {"num_blocks": 12, "preemption": way}
    async with (
        running_fleet(llama, num_pairs, num_pairs, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for salts in ([f"cold {i}" for i in range(len(ALL))], ["hot"] * len(ALL)):
            asked = [
                client.generate(PROMPT, cache_salt=salt, **BASE | case)
                for case, salt in zip(ALL, salts, strict=True)
            ]
            check([served(completion) for completion in await asyncio.gather(*asked)], alone)
        streams = [streamed(client, PROMPT, cache_salt="hot", **BASE | ALL[i]) for i in STREAMED]
        found = [served(completion) for completion in await asyncio.gather(*streams)]
        check(found, [alone[i] for i in STREAMED])
        if not is_preempted:
            one_by_one = [await client.generate(PROMPT, **BASE | case) for case in ALL]
            check([served(completion) for completion in one_by_one], alone)
        for worker in await fleet.workers("decode"):
            assert (worker.counters.preemptions > 0) == is_preempted
            assert (preempted(worker.counters, way) > 0) == is_preempted
        await fleet.wait_until_quiet()


async def test_with_an_adapter_every_field_is_the_same_beside_requests_without(
    llama: Path, alone: list[Result]
) -> None:
    lora = {"x": tiny_adapter(llama, llama.parent / "adapter")}
    settings: dict[str, Any] = {"lora": (f"x={lora['x']}",)}
    llm = LLM(str(llama), dtype="float32", device="cpu", num_blocks=512, num_threads=1, lora=lora)
    adapted = in_process(llm, ALL, "x")
    assert sum(one.text != other.text for one, other in zip(adapted, alone, strict=True)) > 20
    async with (
        running_fleet(llama, prefill=settings, decode=settings) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for _ in ("cold", "hot"):
            asked = [
                client.generate(PROMPT, lora_adapter=name, **BASE | case)
                for name in ("", "x")
                for case in ALL
            ]
            results = [served(completion) for completion in await asyncio.gather(*asked)]
            check(results[: len(ALL)], alone)
            check(results[len(ALL) :], adapted)
        await fleet.wait_until_quiet()


async def test_what_is_included_and_the_echo(llama: Path) -> None:
    async with (
        running_fleet(llama) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
        grpc.aio.insecure_channel(fleet.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        facts = await client.generate("The prefill worker", max_tokens=5, seed=1, echo=True)
        assert facts.prompt == "The prefill worker"
        assert facts.prompt_token_ids == await client.tokenize("The prefill worker")
        assert facts.prompt_logprobs is None
        chat = [{"role": "user", "content": "hi"}]
        shown = await client.generate(chat, max_tokens=1, echo=True, skip_special_tokens=False)
        assert shown.prompt_token_ids == await client.tokenize(chat)
        assert shown.prompt.startswith("<|im_start|>user\nhi<|im_end|>")
        hidden = await client.generate(chat, max_tokens=1, echo=True)
        assert hidden.prompt == "user\nhi\nassistant\n"
        for text in (True, False):
            for ids in (True, False):
                output = inference_pb2.OutputOptions(
                    include_text=text, include_token_ids=ids, logprobs=1, echo=True
                )
                whole = await stub.Generate(
                    inference_pb2.GenerateRequest(
                        token_ids=inference_pb2.TokenIds(ids=PROMPT),
                        sampling=inference_pb2.SamplingParams(seed=1, max_tokens=5),
                        output=output,
                    )
                )
                (candidate,) = whole.candidates
                assert (bool(candidate.text), bool(candidate.token_ids)) == (text, ids)
                assert len(candidate.logprobs.logprobs) == 5
                assert (bool(whole.prompt.text), len(whole.prompt.token_ids)) == (text, 37)
