"""Log-probabilities: those of `transformers`, of prompt and output, computed in any way."""

from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import reference_logits, tiny_llama
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine import prompt_rows, token_choice
from octavo.engine.choice import ScoredToken
from octavo.engine.engine import Engine
from octavo.engine.errors import InvalidLogits, NoTokenLeft
from octavo.engine.logit_rules import apply_rules
from octavo.engine.logprobs import on_host, score
from octavo.engine.sequence import Sequence
from octavo.engine.token_choice import choose
from octavo.sampling_params import SamplingParams
from octavo.token_logprobs import TokenLogprobs, joined

VOCAB = 384


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


def prompt_of(length: int) -> list[int]:
    return [5 + 7 * i % 350 for i in range(length)]


def told(engine: Engine, seqs: list[Sequence]) -> dict[str, tuple[TokenLogprobs, TokenLogprobs]]:
    """(of the prompt, of the output) by sequence; each index is told once and in order."""
    prompts: dict[str, list[TokenLogprobs]] = {seq.seq_id: [] for seq in seqs}
    outputs: dict[str, list[TokenLogprobs]] = {seq.seq_id: [] for seq in seqs}
    for seq in seqs:
        engine.check(seq)
        engine.scheduler.add(seq)
    while engine.scheduler.has_work:
        for output in engine.step():
            if output.prompt_logprobs is not None:
                known = sum(map(len, prompts[output.seq_id]))
                assert output.first_prompt_index == known + 1
                prompts[output.seq_id].append(output.prompt_logprobs)
            if output.logprobs is not None:
                assert len(output.logprobs) == len(output.token_ids)
                outputs[output.seq_id].append(output.logprobs)
    nothing = TokenLogprobs(())
    return {
        seq_id: (joined(prompts[seq_id] or [nothing]), joined(outputs[seq_id] or [nothing]))
        for seq_id in prompts
    }


def check(path: Path, seq: Sequence, found: tuple[TokenLogprobs, TokenLogprobs]) -> None:
    """Values and the likeliest tokens are those of `transformers`."""
    logprobs = torch.log_softmax(reference_logits(path, seq.token_ids).double(), dim=-1).numpy()
    prompt, output = found
    num_prompt = seq.num_prompt_tokens
    if seq.sampling.prompt_logprobs is not None:
        check_rows(logprobs[: num_prompt - 1], seq.token_ids[1:num_prompt], prompt)
    check_rows(logprobs[num_prompt - 1 : -1], seq.output_token_ids, output)


def check_rows(expected: np.ndarray, token_ids: list[int], found: TokenLogprobs) -> None:
    assert len(found) == len(token_ids)
    for row, token_id, got in zip(expected, token_ids, found.rows(token_ids), strict=True):
        assert got.logprob == pytest.approx(row[token_id], abs=1e-5)
        assert [i for i, _ in got.top] == np.argsort(-row, kind="stable")[: found.num_top].tolist()
        for token, value in got.top:
            assert value == pytest.approx(row[token], abs=1e-5)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 70])
def test_prompt_and_output_cold_hot_and_in_chunks(llama: Path, length: int) -> None:
    """C01: also where the prompt is cached; its logits are computed again."""
    sampling = SamplingParams(
        temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    whole = tiny_engine(llama)
    chunked = tiny_engine(llama, max_num_batched_tokens=7)
    for engine in (whole, whole, chunked):
        seq = make_sequence("s", prompt_of(length), sampling)
        (found,) = told(engine, [seq]).values()
        check(llama, seq, found)
        assert seq.num_cached_tokens == 0
    seq = make_sequence("other", prompt_of(length), SamplingParams(max_tokens=1, seed=1))
    run(whole, [seq])
    assert seq.num_cached_tokens == (length - 1) // 16 * 16, "it was not registered"


def test_many_prompts_share_the_rows_of_a_step(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_rows, "MAX_PROMPT_ROWS", 10)
    engine = tiny_engine(llama)
    sampling = SamplingParams(temperature=0.0, max_tokens=3, logprobs=0, prompt_logprobs=0)
    seqs = [make_sequence(f"s{i}", prompt_of(3 + 11 * i), sampling) for i in range(5)]
    for seq, found in zip(seqs, told(engine, seqs).values(), strict=True):
        check(llama, seq, found)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_preempted_sequence_tells_each_once(llama: Path, preemption: str) -> None:
    sampling = SamplingParams(
        temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=1, prompt_logprobs=1
    )
    # Prompts differ, or the second would find the first one's blocks.
    engine = tiny_engine(llama, num_blocks=9, max_num_batched_tokens=16, preemption=preemption)
    seqs = [make_sequence(f"s{i}", prompt_of(40 + i)[::-1], sampling) for i in range(2)]
    found = told(engine, seqs)
    assert sum(seq.num_preemptions for seq in seqs) > 0
    for seq in seqs:
        check(llama, seq, found[seq.seq_id])


def test_they_are_those_of_the_model_whatever_the_rules(llama: Path) -> None:
    plain = SamplingParams(seed=3, max_tokens=6, ignore_eos=True, logprobs=2)
    ruled = SamplingParams(
        seed=3,
        max_tokens=6,
        ignore_eos=True,
        logprobs=2,
        temperature=0.3,
        top_k=5,
        presence_penalty=1.5,
        logit_bias={9: 4.0},
        bad_words_ids=[[8]],
    )
    seqs = [make_sequence("plain", prompt_of(20), plain)]
    seqs.append(make_sequence("ruled", prompt_of(20), ruled))
    found = told(tiny_engine(llama), seqs)
    for seq in seqs:
        check(llama, seq, found[seq.seq_id])


def test_equals_stand_in_the_order_of_their_ids() -> None:
    logits = torch.tensor(
        [[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [0.0] * 6, [-torch.inf, 1, -torch.inf, 1, 1, 0]]
    )
    found = score(on_host(logits), [2, 5, 0], 4)
    assert found.top_token_ids == (1, 3, 2, 4, 0, 1, 2, 3, 1, 3, 4, 5)
    assert found.logprobs[1] == pytest.approx(-np.log(6))
    assert found.logprobs[2] == -np.inf
    assert len(score(on_host(logits), [0, 0, 0], 20).top_token_ids) == 18


def test_bfloat16_rows_are_read_as_they_are() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.log_softmax(logits.double(), dim=-1)
    found = score(on_host(logits), [4, 5, 6], 0)
    assert found.logprobs == pytest.approx(expected[[0, 1, 2], [4, 5, 6]].tolist(), abs=1e-6)


def test_rows_that_cannot_be_chosen_from_are_errors_and_others_are_exact() -> None:
    logits = torch.zeros(4, VOCAB)
    logits[:, 9] = 5.0
    logits[1, 3] = torch.nan
    greedy = SamplingParams(temperature=0.0, logprobs=1, presence_penalty=1.0)
    # In the middle of an output: after 5 only 6 is allowed, and may not come.
    stuck = SamplingParams(temperature=0.0, allowed_token_ids=[6], bad_words_ids=[[5, 6]])
    seqs = [make_sequence(f"s{i}", [1, 2], greedy) for i in range(3)]
    seqs.append(make_sequence("stuck", [1, 5], stuck))
    first, second, third, fourth = choose(logits, seqs)
    assert first == third and not isinstance(first, int | InvalidLogits)
    assert isinstance(second, InvalidLogits) and not isinstance(second, NoTokenLeft)
    assert isinstance(fourth, NoTokenLeft) and "output token 0" in str(fourth)


def test_rows_that_ask_for_nothing_are_neither_copied_nor_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the rows of a rule are looked at; the model's own logits are changed by nobody."""
    given = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    logits = given.clone()
    samplings = [SamplingParams(seed=i, temperature=i % 2 * 0.8) for i in range(6)]
    samplings[2] = SamplingParams(seed=2, temperature=0.8, logit_bias={7: 50.0}, logprobs=1)
    samplings[5] = SamplingParams(seed=5, temperature=0.0, logprobs=0)
    seqs = [make_sequence(f"s{i}", [1, 2], sampling) for i, sampling in enumerate(samplings)]
    ruled: list[int] = []
    scored: list[int] = []

    def watched_rules(rows: torch.Tensor, seqs: list[Sequence]) -> None:
        ruled.append(len(rows))
        apply_rules(rows, seqs)

    def watched_score(rows: np.ndarray, token_ids: list[int], num_top: int) -> TokenLogprobs:
        scored.append(len(rows))
        return score(rows, token_ids, num_top)

    monkeypatch.setattr(token_choice, "apply_rules", watched_rules)
    monkeypatch.setattr(token_choice, "score", watched_score)
    together = choose(logits, seqs)
    assert (ruled, scored) == ([1], [1, 1]) and torch.equal(logits, given)
    assert isinstance(together[2], ScoredToken) and together[2].token_id == 7
    assert together == [choose(logits[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]
    ruled.clear()
    plain = [0, 1, 3, 4]
    assert choose(logits[plain], [seqs[i] for i in plain]) == [together[i] for i in plain]
    assert not ruled
