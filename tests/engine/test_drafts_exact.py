"""Guesses change no token of a real model: rules, draws, log-probabilities, whatever the batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import PHRASE, circling, reference_run
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.sampling_params import SamplingParams
from octavo.token_logprobs import TokenLogprobs

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
PROMPTS = [PHRASE * 2 + [30 + i] + PHRASE[: 2 + i % 9] for i in range(4)]
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "cold": {"temperature": 0.05, "seed": 3},
    "seeded": {"temperature": 0.5, "top_p": 0.9, "seed": 5},
    "repetition_penalty": {"repetition_penalty": 1.02},
    "negative penalties": {"frequency_penalty": -0.5, "presence_penalty": -0.5, "seed": 9},
    "frequency_penalty": {"frequency_penalty": 0.01},
    "logit_bias": {"logit_bias": {45: 2.0, 7: -3.0, 300: 1.0}},
    "bad_words": {"bad_words_ids": ((45, 7, 300), (21,), (88, 130))},
    "allowed": {"allowed_token_ids": tuple(range(60)), "temperature": 0.1, "seed": 1},
    "min_tokens": {"min_tokens": 30, "ignore_eos": False, "stop_token_ids": tuple(range(60))},
    "stop ids": {"stop_token_ids": tuple(range(0, 384, 9))},
    "logprobs": {"logprobs": 3},
    "rules and logprobs": {"logprobs": 2, "repetition_penalty": 1.01, "logit_bias": {45: 1.0}},
    "short": {"max_tokens": 2},
}


@pytest.fixture(scope="module", params=[{}, {"sliding_window": 32}], ids=["llama", "mistral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return circling(tmp_path_factory.mktemp("circling") / "model", **request.param)


def cpu_engine(path: Path, **settings: object) -> Engine:
    """The CPU's own kernels; steps that only decode are replayed where the CPU allows."""
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "num_blocks": 256}
    config = EngineConfig(model=str(path), **defaults | settings)  # type: ignore[arg-type]
    return build_engine(config)


def sampling(case: str, wish: bool | None = True) -> SamplingParams:
    return replace(GREEDY, **CASES[case], prompt_lookup=wish)


def run_scored(engine: Engine, case: str, prompt: list[int]) -> tuple[list[int], TokenLogprobs]:
    seq = make_sequence(case, prompt, sampling(case))
    engine.scheduler.add(seq)
    token_ids: list[int] = []
    parts = []
    while engine.scheduler.has_work:
        for output in engine.step():
            token_ids += output.token_ids
            if output.token_ids:
                assert output.logprobs is not None
                assert len(output.logprobs) == len(output.token_ids)
                parts.append(output.logprobs)
    assert token_ids == seq.output_token_ids
    return token_ids, TokenLogprobs(
        tuple(v for part in parts for v in part.logprobs),
        parts[0].num_top,
        tuple(v for part in parts for v in part.top_token_ids),
        tuple(v for part in parts for v in part.top_logprobs),
    )


def test_alone_and_together_every_case_is_as_without(model: Path) -> None:
    plain, guessing = cpu_engine(model, max_draft_tokens=0), cpu_engine(model)
    expected = {
        case: run(plain, [make_sequence(case, PROMPTS[0], sampling(case))])[0] for case in CASES
    }
    assert plain.counters().draft_tokens_proposed == 0
    for case, tokens in expected.items():
        before = guessing.counters().draft_tokens_accepted
        assert run(guessing, [make_sequence(case, PROMPTS[0], sampling(case))])[0] == tokens, case
        if case in ("greedy", "cold", "logit_bias", "logprobs", "repetition_penalty"):
            assert guessing.counters().draft_tokens_accepted > before, case
    together = [make_sequence(case, PROMPTS[0], sampling(case)) for case in CASES]
    assert run(guessing, together) == list(expected.values())
    tight = cpu_engine(model, num_blocks=12, max_num_batched_tokens=40)
    together = [make_sequence(case, PROMPTS[0], sampling(case)) for case in CASES]
    for index, seq in enumerate(together):
        seq.group_key = bytes([index] * 32)  # equal outputs share no blocks
    assert run(tight, together) == list(expected.values())
    assert tight.counters().preemptions > 0 and tight.counters().draft_tokens_accepted > 0


def test_they_are_those_of_transformers(model: Path) -> None:
    engine = tiny_engine(model)
    seqs = [make_sequence(str(i), p, sampling("greedy")) for i, p in enumerate(PROMPTS)]
    found = run(engine, seqs)
    assert engine.counters().draft_tokens_accepted > 0
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        reference = reference_run(model, prompt, GREEDY.max_tokens, ignore_eos=True)
        for ours, theirs, margin in zip(
            tokens, reference.token_ids, reference.margins, strict=True
        ):
            if ours != theirs and margin < 1e-4:
                break  # the reference itself is all but undecided
            assert ours == theirs


def test_a_resumed_sequence_goes_on_as_it_would(model: Path) -> None:
    engine = cpu_engine(model)
    for case in CASES:
        whole = run(engine, [make_sequence(case, PROMPTS[1], sampling(case))])[0]
        for cut in (1, len(whole) // 2):
            if 0 < cut < len(whole):
                seq = make_sequence(case, PROMPTS[1], sampling(case))
                seq.token_ids += whole[:cut]
                assert run(engine, [seq]) == [whole], case


@pytest.mark.parametrize("case", ["logprobs", "rules and logprobs"])
def test_log_probabilities_are_as_without(model: Path, case: str) -> None:
    engine = cpu_engine(model)
    with_guesses = run_scored(engine, case, PROMPTS[2])
    assert engine.counters().draft_tokens_accepted > 0
    without = run_scored(cpu_engine(model, max_draft_tokens=0), case, PROMPTS[2])
    assert with_guesses == without


def test_fewer_steps_are_taken_where_the_output_repeats_itself(model: Path) -> None:
    steps = {}
    for wish in (False, None, True):
        engine = cpu_engine(model)
        run(engine, [make_sequence("a", PROMPTS[0], sampling("greedy", wish))])
        steps[wish] = engine.counters().steps
    assert steps[False] == GREEDY.max_tokens
    assert steps[True] < 0.8 * steps[False] and steps[None] < steps[False]


@pytest.mark.parametrize("max_draft_tokens", [-1, 33])
def test_a_limit_out_of_range_is_refused(max_draft_tokens: int) -> None:
    with pytest.raises(ValueError, match="max_draft_tokens must be 0"):
        EngineConfig(model="m", max_draft_tokens=max_draft_tokens)
