"""Beam search through the split finds what `transformers` does: tokens, scores, order (C12)."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints import tiny_llama
from checkpoints.reference_beams import Found, reference_beams
from end_to_end.fleet import running_fleet
from end_to_end.prompts import prompt_of, streamed
from octavo import LLM, BeamSearch, SamplingParams
from octavo.client import AsyncClient, Completion, OctavoError
from octavo.text.output import TextOutput

EOS = 2
ENDS = list(range(100, 130))
LENGTHS = (5, 32, 37)
MAX_TOKENS = 20
SEARCHES = [
    BeamSearch(4, 1.0, False),
    BeamSearch(3, 2.0, "never"),
    BeamSearch(4, -0.5, True),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("beams") / "llama")


def expect(llama: Path, length: int, beams: BeamSearch, max_tokens: int = MAX_TOKENS) -> Found:
    return reference_beams(llama, prompt_of(length), max_tokens, beams, [EOS, *ENDS])


def check(completion: Completion, expected: Found) -> None:
    found = completion.candidates
    assert [c.token_ids for c in found] == [tokens for tokens, _ in expected]
    assert [c.score for c in found] == pytest.approx([score for _, score in expected], rel=1e-5)
    for candidate in found:
        has_stopped = candidate.token_ids[-1] in (EOS, *ENDS)
        assert (candidate.finish_reason == "stop") == has_stopped
    assert completion.usage.completion_tokens == sum(len(c.token_ids) for c in found)


@pytest.mark.parametrize("num_pairs", [1, 2])
@pytest.mark.parametrize("way", ["pulled", "local", "small pool"])
async def test_served_beams_are_those_of_transformers(
    llama: Path, num_pairs: int, way: str
) -> None:
    decode: dict[str, Any] = {"local_prefill_max_tokens": 64 if way == "local" else 0}
    if way == "small pool":
        decode["num_blocks"] = 13
    asked = [(length, beams) for length in LENGTHS for beams in SEARCHES]
    expected = [expect(llama, length, beams) for length, beams in asked]
    async with (
        running_fleet(llama, num_pairs, num_pairs, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for ask in (client.generate, lambda prompt, **fields: streamed(client, prompt, **fields)):
            answers = [
                ask(
                    prompt_of(length),
                    beam_search=beams,
                    n=beams.width,
                    max_tokens=MAX_TOKENS,
                    stop_token_ids=ENDS,
                )
                for length, beams in asked
            ]
            plain = client.generate(prompt_of(9), temperature=0.0, max_tokens=30)
            *found, _ = await asyncio.gather(*answers, plain)
            for completion, wanted in zip(found, expected, strict=True):
                check(completion, wanted)
        await fleet.wait_until_quiet()


async def test_outputs_of_one_and_two_tokens(llama: Path) -> None:
    """With one token the prefill worker's candidates are the result."""
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address, timeout_s=20) as client:
        for max_tokens in (1, 2):
            for n in (1, 3):
                completion = await client.generate(
                    prompt_of(40),
                    beam_search=BeamSearch(3),
                    n=n,
                    max_tokens=max_tokens,
                    stop_token_ids=ENDS,
                )
                check(completion, expect(llama, 40, BeamSearch(3), max_tokens)[:n])
        await fleet.wait_until_quiet()


async def test_a_stream_says_nothing_before_its_end_and_leaving_it_frees_all(llama: Path) -> None:
    async with (
        running_fleet(llama, decode={"num_blocks": 512}) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        stream = client.stream(
            prompt_of(37), beam_search=BeamSearch(3), n=2, max_tokens=9, ignore_eos=True
        )
        deltas = [delta async for delta in stream]
        assert [(delta.index, len(delta.token_ids)) for delta in deltas] == [(0, 9), (1, 9)]
        scores = [candidate.score for candidate in stream.completion.candidates]
        assert None not in scores
        endless = client.stream(
            prompt_of(37), beam_search=BeamSearch(6), max_tokens=900, ignore_eos=True
        )
        async with endless:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(endless), 0.3)
        await fleet.wait_until_quiet()


async def test_what_makes_no_sense_is_refused_by_name(llama: Path) -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("sampling.beam_search.width", {"beam_search": BeamSearch(9)}),
        ("sampling.seed", {"seed": 5}),
        ("sampling.temperature", {"temperature": 0.5}),
        ("sampling.top_p", {"top_p": 0.5}),
        ("sampling.stop", {"stop": ["x"]}),
        ("sampling.best_of", {"best_of": 2}),
        ("sampling.n", {"n": 3}),
        ("output.logprobs", {"logprobs": 1}),
    ]
    async with (
        running_fleet(llama, decode={"max_num_seqs": 8}) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        for field, fields in refused:
            request = {"beam_search": BeamSearch(2), **fields}
            with pytest.raises((OctavoError, ValueError)) as error:
                await client.generate(prompt_of(40), **request)
            if isinstance(error.value, OctavoError):
                assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
                assert error.value.field == field
            else:  # the client's own check
                assert str(error.value).startswith(field.partition(".")[2])


def test_in_process_beams_have_text_and_scores(llama: Path) -> None:
    llm = LLM(str(llama), dtype="float32", device="cpu", num_blocks=256, num_threads=1)
    beams = BeamSearch(4, 1.0, "never")
    params = SamplingParams(beam_search=beams, n=3, max_tokens=MAX_TOKENS, stop_token_ids=ENDS)
    outputs = llm.generate([prompt_of(length) for length in LENGTHS], params, use_tqdm=False)
    for length, output in zip(LENGTHS, outputs, strict=True):
        wanted = expect(llama, length, beams)[:3]
        assert [one.token_ids for one in output.outputs] == [tokens for tokens, _ in wanted]
        assert [one.score for one in output.outputs] == pytest.approx(
            [score for _, score in wanted], rel=1e-5
        )
        for one in output.outputs:
            assert one.cumulative_logprob is not None and one.score is not None
            assert one.score == pytest.approx(one.cumulative_logprob / len(one.token_ids))
            text = TextOutput(llm.tokenizer, output.prompt_token_ids, params)
            assert one.text == text.push(one.token_ids).text + text.finish()
    assert llm.engine.scheduler.pool.num_held == 0
