"""n and best_of: sample i is what a request of its own with seed + i gives, whichever way.

Of one prompt, one prefill and one transfer: in process, through the split, cold, cached, streamed
and preempted (case C11).
"""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from checkpoints import tiny_llama
from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import GREEDY, prompt_of, streamed
from octavo import LLM, SamplingParams
from octavo.client import AsyncClient, Candidate, Completion, OctavoError

LENGTHS = (5, 32, 37)
N = 4
HOT: dict[str, Any] = {"temperature": 1.5, "max_tokens": 40, "seed": 2**64 - 2}
Told = tuple[list[int], str, str]  # tokens, text, why it ended


class Alone(NamedTuple):
    stop: str  # a string that ends some samples
    told: dict[int, list[Told]]  # by length of the prompt


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("samples") / "llama")


def make_llm(model: Path, num_blocks: int = 256) -> LLM:
    return LLM(str(model), dtype="float32", device="cpu", num_blocks=num_blocks, num_threads=1)


@pytest.fixture(scope="module")
def alone(llama: Path) -> Alone:
    """Of each prompt, requests of their own with the seeds that the samples have."""
    llm = make_llm(llama)
    for stop in ("w", "k", "f", "d", "th", "e"):
        found: dict[int, list[Told]] = {}
        for length in LENGTHS:
            params = [
                SamplingParams(**HOT | {"seed": (HOT["seed"] + i) % 2**64}, stop=(stop,))
                for i in range(N)
            ]
            outputs = llm.generate([prompt_of(length)] * N, params, use_tqdm=False)
            found[length] = [local(output.outputs[0]) for output in outputs]
        reasons = [reason for told in found.values() for _, _, reason in told]
        if 2 <= reasons.count("stop") <= 6:
            return Alone(stop, found)
    raise AssertionError("the samples must end in both ways")


def local(one: Any) -> Told:
    return one.token_ids, one.text, one.finish_reason


def served(candidate: Candidate) -> Told:
    reason = "length" if candidate.finish_reason == "length" else "stop"
    return candidate.token_ids, candidate.text, reason


@pytest.mark.parametrize("num_blocks", [256, 14])
def test_in_process_every_sample_is_the_request_with_its_seed(
    llama: Path, alone: Alone, num_blocks: int
) -> None:
    llm = make_llm(llama, num_blocks)
    params = SamplingParams(**HOT, n=N, stop=(alone.stop,))
    for _ in range(2):  # cold, then cached
        outputs = llm.generate([prompt_of(i) for i in LENGTHS], params, use_tqdm=False)
        for length, output in zip(LENGTHS, outputs, strict=True):
            assert [one.index for one in output.outputs] == list(range(N))
            assert [local(one) for one in output.outputs] == alone.told[length]
        assert llm.engine.scheduler.pool.num_held == 0
    if num_blocks == 14:  # where samples end early there may be room for all
        longest = SamplingParams(**HOT, n=N, ignore_eos=True)
        prompts = [prompt_of(i) for i in LENGTHS]
        crowded, roomy = (
            [[one.token_ids for one in output.outputs] for output in outputs]
            for outputs in (
                llm.generate(prompts, longest, use_tqdm=False),
                make_llm(llama).generate(prompts, longest, use_tqdm=False),
            )
        )
        assert crowded == roomy
    assert (llm.counters().preemptions > 0) == (num_blocks == 14)
    if num_blocks > 14:
        assert llm.counters().prompt_tokens_computed == sum(LENGTHS) + 5 + 16 + 5
        assert llm.counters().shared_block_steps > 0


@pytest.mark.parametrize("num_pairs", [1, 2])
@pytest.mark.parametrize("way", ["pulled", "local", "preempted"])
async def test_served_every_sample_is_the_request_with_its_seed(
    llama: Path, alone: Alone, num_pairs: int, way: str
) -> None:
    decode: dict[str, Any] = {"local_prefill_max_tokens": 64 if way == "local" else 0}
    if way == "preempted":
        decode["num_blocks"] = 14
    single, fields = HOT | {"stop": alone.stop}, HOT | {"stop": alone.stop, "n": N}
    async with (
        running_fleet(llama, num_pairs, num_pairs, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for salt in ("", "", "other"):
            asked = [client.generate(prompt_of(i), cache_salt=salt, **fields) for i in LENGTHS]
            streams = [streamed(client, prompt_of(i), cache_salt=salt, **fields) for i in LENGTHS]
            singles = [client.generate(prompt_of(i), **single) for i in LENGTHS]
            whole = await asyncio.gather(*asked, *streams)
            for length, completion in zip(LENGTHS * 2, whole, strict=True):
                check(completion, alone.told[length])
            for length, completion in zip(LENGTHS, await asyncio.gather(*singles), strict=True):
                assert served(completion.candidates[0]) == alone.told[length][0]
        await fleet.wait_until_quiet()
        preemptions = sum(w.counters.preemptions for w in await fleet.workers("decode"))
        assert (preemptions > 0) == (way == "preempted")


def check(completion: Completion, expected: list[Told]) -> None:
    assert [candidate.index for candidate in completion.candidates] == list(range(len(expected)))
    assert [served(candidate) for candidate in completion.candidates] == expected
    assert completion.text == expected[0][1]
    usage = completion.usage
    assert usage.completion_tokens == sum(len(tokens) for tokens, _, _ in expected)


async def test_the_prompt_is_computed_and_transferred_once(llama: Path) -> None:
    async with (
        running_fleet(llama, decode={"local_prefill_max_tokens": 0}) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        completion = await client.generate(prompt_of(37), n=6, **HOT)
        assert len(completion.candidates) == 6
        (prefill,), (decode,) = await fleet.workers("prefill"), await fleet.workers("decode")
        assert prefill.counters.prompt_tokens_computed == 37
        assert decode.counters.prompt_tokens_computed == 0
        assert decode.counters.blocks_transferred == 3
        assert (completion.usage.prompt_tokens, completion.usage.transferred_prompt_tokens) == (
            37,
            37,
        )
        assert decode.counters.shared_block_steps > 0
        for max_tokens in (1, 2):
            short = await client.generate(prompt_of(9), n=3, **HOT | {"max_tokens": max_tokens})
            assert [len(one.token_ids) for one in short.candidates] == [max_tokens] * 3
        await fleet.wait_until_quiet()


async def test_a_sample_that_ends_early_ends_alone(llama: Path) -> None:
    """By an end-of-sequence token, at once or later; the others are not disturbed."""
    async with (
        running_fleet(llama, decode={"local_prefill_max_tokens": 0}) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        fields = HOT | {"logit_bias": {2: 7.0}, "max_tokens": 30}
        whole = await client.generate(prompt_of(20), n=12, **fields)
        singles = [
            await client.generate(prompt_of(20), **fields | {"seed": (HOT["seed"] + i) % 2**64})
            for i in range(12)
        ]
        assert [c.token_ids for c in whole.candidates] == [c.token_ids for c in singles]
        lengths = {len(candidate.token_ids) for candidate in whole.candidates}
        assert 1 in lengths and len(lengths) > 3
        await fleet.wait_until_quiet()


async def test_the_best_of_several_have_the_highest_mean_log_probability(llama: Path) -> None:
    llm = make_llm(llama)
    fields = HOT | {"logit_bias": {2: 3.0}}
    every = SamplingParams(**fields, n=8, logprobs=0)
    (output,) = llm.generate([prompt_of(37)], every, use_tqdm=False)
    means = [
        sum(row.logprob for row in one.logprobs or ()) / len(one.token_ids)
        for one in output.outputs
    ]
    order = sorted(range(8), key=lambda i: -means[i])[:3]
    wanted = [output.outputs[i].token_ids for i in order]
    best = SamplingParams(**fields, n=3, best_of=8)
    (chosen,) = llm.generate([prompt_of(37)], best, use_tqdm=False)
    assert [one.token_ids for one in chosen.outputs] == wanted
    assert [one.index for one in chosen.outputs] == [0, 1, 2]
    assert [one.score for one in chosen.outputs] == pytest.approx([means[i] for i in order])
    assert all(one.logprobs is None for one in chosen.outputs)
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address, timeout_s=60) as client:
        completion = await client.generate(prompt_of(37), n=3, best_of=8, **fields)
        assert [one.token_ids for one in completion.candidates] == wanted
        assert [one.score for one in completion.candidates] == pytest.approx(
            [means[i] for i in order], abs=1e-5
        )
        for one, index in zip(completion.candidates, order, strict=True):
            assert one.logprobs is None and one.cumulative_logprob == pytest.approx(
                means[index] * len(one.token_ids), abs=1e-4
            )
        every_token = sum(len(one.token_ids) for one in output.outputs)
        assert completion.usage.completion_tokens == every_token
        scored = await client.generate(prompt_of(37), best_of=8, logprobs=2, **fields)
        assert scored.token_ids == wanted[0] and scored.logprobs is not None


async def test_what_makes_no_sense_is_refused_by_name(llama: Path) -> None:
    async with (
        running_fleet(llama, decode={"num_blocks": 12, "max_num_seqs": 6}) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        await refused(client, "sampling.best_of", "in a stream", is_stream=True, best_of=2)
        await refused(client, "sampling.n", r"n must be 1 to 6 \(max_num_seqs\)", n=7)
        await refused(client, "sampling.n", "may need 24 blocks, there are 12", n=3, max_tokens=99)
        answers = await asyncio.gather(
            *(client.generate(prompt_of(60), n=n, **GREEDY, max_tokens=9) for n in (1, 4, 1, 3))
        )
        assert len({tuple(c.token_ids) for answer in answers for c in answer.candidates}) == 1
        await fleet.wait_until_quiet()


async def refused(
    client: AsyncClient, field: str, message: str, *, is_stream: bool = False, **fields: Any
) -> None:
    with pytest.raises(OctavoError, match=message) as error:
        if is_stream:
            await streamed(client, prompt_of(60), **fields)
        else:
            await client.generate(prompt_of(60), **fields)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.field == field


async def test_a_caller_who_leaves_frees_every_sample(llama: Path) -> None:
    async with (
        running_fleet(llama, decode={"local_prefill_max_tokens": 0}) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for num_deltas in (0, 1, 9):
            async with client.stream(
                prompt_of(37), n=5, **HOT | {"max_tokens": 500, "ignore_eos": True}
            ) as stream:
                for _ in range(num_deltas):
                    await anext(stream)
            await still(fleet)


async def still(fleet: Fleet) -> None:
    await fleet.wait_until_quiet()
    assert fleet.router.generator.num_running == 0
