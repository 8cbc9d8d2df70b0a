"""Beams, their scores and their order are those of `transformers`, in every mode."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_llama, tiny_qwen2
from checkpoints.reference_beams import Found, reference_beams
from engine.tiny import GROUP, tiny_engine
from octavo.engine.engine import Engine
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.sampling_params import BeamSearch, SamplingParams

EOS = 2
MODES = list(itertools.product((False, True, "never"), (-0.5, 0.0, 1.0, 2.0)))
# With so many end tokens beams end early and late; with none all run to max_tokens.
ENDS = {"none": (), "some": tuple(range(100, 124)), "many": tuple(range(50, 170))}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("beams") / "model")


def make_prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(3, 384) for _ in range(rng.choice((1, 5, 15, 16, 17, 33, 40)))]


def make_sequence(
    seq_id: str, prompt: list[int], beams: BeamSearch, ends: tuple[int, ...], **fields: Any
) -> Sequence:
    sampling = SamplingParams(
        beam_search=beams,
        n=beams.width,
        ignore_eos=not ends,
        stop_token_ids=ends[:64],
        **{"max_tokens": 12, **fields},
    )
    eos = frozenset({EOS, *ends})
    return Sequence(seq_id, list(prompt), len(prompt), sampling, GROUP, eos_token_ids=eos)


def run(engine: Engine, seqs: list[Sequence]) -> dict[str, Found]:
    """All at once; beams by sequence."""
    found: dict[str, Found] = {seq.seq_id: [] for seq in seqs}
    for seq in seqs:
        engine.check(seq)
        engine.scheduler.add(seq)
    while engine.scheduler.has_work:
        for output in engine.step():
            if output.beam is not None:
                take(found[output.seq_id], output)
    assert engine.scheduler.pool.num_held == 0 and engine.scheduler.num_active == 0
    return found


def take(found: Found, output: SequenceOutput) -> None:
    assert output.beam is not None and output.finish_reason is not None
    assert output.sample_index == len(found) and output.first_index == 0
    found.append((list(output.token_ids), output.beam.score))


def check(found: Found, expected: Found) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [score for _, score in found] == pytest.approx([s for _, s in expected], rel=1e-5)


@pytest.mark.parametrize("ends", ENDS)
def test_beams_are_those_of_transformers(llama: Path, ends: str) -> None:
    rng = random.Random(ends)
    seqs, expected = [], []
    for number, (stopping, penalty) in enumerate(MODES):
        beams = BeamSearch(rng.choice((2, 3, 4, 6)), penalty, stopping)  # type: ignore[arg-type]
        prompt = make_prompt(rng)
        end_ids = [EOS, *ENDS[ends]] if ENDS[ends] else []
        expected.append(reference_beams(llama, prompt, 12, beams, end_ids))
        seqs.append(make_sequence(str(number), prompt, beams, ENDS[ends]))
    engine = tiny_engine(llama, num_blocks=2048)
    for one, wanted in zip(seqs[::5], expected[::5], strict=True):
        again = make_sequence("alone", one.token_ids, one.sampling.beam_search, ENDS[ends])  # type: ignore[arg-type]
        check(run(engine, [again])["alone"], wanted)
    found = run(engine, seqs)  # all in one batch
    for seq, wanted in zip(seqs, expected, strict=True):
        check(found[seq.seq_id], wanted)
    lengths = {len(tokens) for wanted in expected for tokens, _ in wanted}
    assert lengths == {12} if ends == "none" else len(lengths) > 4


def test_a_crowded_pool_changes_nothing(llama: Path) -> None:
    rng = random.Random(3)
    beams = BeamSearch(4, 1.0, "never")
    prompts = [make_prompt(rng) for _ in range(4)]
    ends = ENDS["some"]
    expected = [reference_beams(llama, prompt, 30, beams, [EOS, *ends]) for prompt in prompts]
    engine = tiny_engine(llama, num_blocks=20, max_num_batched_tokens=16)
    seqs = [
        make_sequence(str(i), prompt, beams, ends, max_tokens=30)
        for i, prompt in enumerate(prompts)
    ]
    found = run(engine, seqs)
    for index, wanted in enumerate(expected):
        check(found[str(index)], wanted)
    assert engine.counters().preemptions > 0


def test_rules_act_on_log_probabilities_as_in_transformers(tmp_path: Path) -> None:
    path = tiny_qwen2(tmp_path / "model")
    rng = random.Random(5)
    beams, prompt = BeamSearch(3), make_prompt(rng)
    engine = tiny_engine(path)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"min_tokens": 7}, {"min_new_tokens": 7}),
        ({"bad_words_ids": ((40,), (41, 42))}, {"bad_words_ids": [[40], [41, 42]]}),
        (
            {"allowed_token_ids": tuple(range(300))},
            {"bad_words_ids": [[i] for i in range(300, 384)]},
        ),
    ]
    for ours, theirs in cases:
        wanted = reference_beams(path, prompt, 12, beams, [EOS, *ENDS["many"]], **theirs)
        seq = make_sequence("a", prompt, beams, ENDS["many"], **ours)
        check(run(engine, [seq])["a"], wanted)


def test_one_beam_is_a_greedy_search(llama: Path) -> None:
    rng = random.Random(7)
    for _ in range(4):
        prompt = make_prompt(rng)
        wanted = reference_beams(llama, prompt, 12, BeamSearch(1), [EOS])
        seq = make_sequence("a", prompt, BeamSearch(1), (EOS,))
        assert run(tiny_engine(llama), [seq])["a"][0][0] == wanted[0][0]


def test_beams_share_blocks_and_a_released_search_leaves_none(llama: Path) -> None:
    engine = tiny_engine(llama)
    seq = make_sequence("a", list(range(5, 45)), BeamSearch(6), (), max_tokens=60)
    engine.scheduler.add(seq)
    for _ in range(40):
        engine.step()
    tables = engine.scheduler.roster.by_id["a"]
    assert len(tables) == 6
    distinct = {block_id for beam in tables for block_id in beam.block_ids}
    assert len(distinct) == engine.scheduler.pool.num_held < 6 * len(tables[0].block_ids)
    engine.scheduler.release("a")
    assert engine.scheduler.pool.num_held == 0 and engine.scheduler.num_active == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 3}, "n must be at most beam_search.width, 2, got 3"),
        ({"temperature": 0.7}, "temperature has no meaning beside beam_search"),
        ({"top_k": 5}, "top_k has no meaning"),
        ({"top_p": 0.5}, "top_p has no meaning"),
        ({"min_p": 0.5}, "min_p has no meaning"),
        ({"seed": 1}, "seed has no meaning"),
        ({"best_of": 2}, "best_of has no meaning"),
        ({"logprobs": 0}, "logprobs has no meaning"),
        ({"stop": "x"}, "stop has no meaning"),
    ],
)
def test_what_makes_no_sense_beside_beams_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(beam_search=BeamSearch(2), **fields)
    SamplingParams(beam_search=BeamSearch(2), temperature=0.0, top_k=-1, n=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "beam_search.width must be 1 to 16, got 0"),
        ({"width": 17}, "beam_search.width must be 1 to 16, got 17"),
        ({"width": 2, "length_penalty": float("nan")}, "length_penalty must be -10 to 10"),
        ({"width": 2, "early_stopping": "soon"}, "early_stopping must be true, false or 'never'"),
    ],
)
def test_beams_out_of_range_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeamSearch(**fields)


def test_beams_that_can_never_run_are_refused_by_name(llama: Path) -> None:
    engine = tiny_engine(llama, num_blocks=8, max_num_seqs=4)
    with pytest.raises(ValueError, match="beam_search.width must be 1 to 4"):
        engine.check(make_sequence("a", [5] * 9, BeamSearch(5), ()))
    with pytest.raises(ValueError, match="beam_search.width 4 with max_tokens 60 .* 20 blocks"):
        engine.check(make_sequence("a", [5] * 9, BeamSearch(4), (), max_tokens=60))
