"""Rules of logits: equal to `transformers`' processors and to formulas in float64."""

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from octavo.engine.logit_rules import apply_rules
from octavo.engine.sampler import draw
from octavo.engine.sequence import Sequence
from octavo.engine.token_choice import choose
from octavo.sampling_params import SamplingParams

NUM_ROWS = 10_000
BATCH = 500
VOCAB = 200
EOS = frozenset({7, 9})


def make_sequence(
    sampling: SamplingParams, prompt: list[int], output: list[int], **fields: object
) -> Sequence:
    """A sequence that came to its output token by token, under its rules from the start."""
    seq = Sequence(
        "s",
        list(prompt),
        len(prompt),
        sampling,
        b"",
        eos_token_ids=EOS,
        **fields,  # type: ignore[arg-type]
    )
    assert seq.rules.banned_ids(seq.token_ids) is not None
    for token_id in output:
        seq.append(token_id)
    return seq


def ruled(logits: torch.Tensor, seqs: list[Sequence]) -> torch.Tensor:
    changed = logits.clone()
    apply_rules(changed, seqs)
    return changed


def batches(seed: int) -> list[tuple[torch.Tensor, list[list[int]], np.random.Generator]]:
    """Logits and contexts of 10,000 rows."""
    rng = np.random.default_rng(seed)
    return [
        (
            torch.from_numpy(rng.normal(scale=4.0, size=(BATCH, VOCAB)).astype(np.float32)),
            rng.integers(0, VOCAB, size=(BATCH, 24)).tolist(),
            rng,
        )
        for _ in range(NUM_ROWS // BATCH)
    ]


def test_repetition_penalty_equals_that_of_transformers() -> None:
    for logits, contexts, rng in batches(1):
        penalties = rng.uniform(0.5, 2.0, size=BATCH).tolist()
        seqs = [
            make_sequence(SamplingParams(repetition_penalty=p), context[:10], context[10:])
            for p, context in zip(penalties, contexts, strict=True)
        ]
        expected = torch.cat(
            [
                RepetitionPenaltyLogitsProcessor(p)(torch.tensor([context]), row[None].clone())
                for p, context, row in zip(penalties, contexts, logits, strict=True)
            ]
        )
        assert torch.equal(ruled(logits, seqs), expected)


def test_bad_words_equal_those_of_transformers() -> None:
    num_banned = 0
    for logits, contexts, rng in batches(2):
        bad: list[tuple[int, ...]] = [(int(i),) for i in rng.integers(0, VOCAB, size=3)]
        for context in contexts[::10]:  # sequences whose beginning some contexts end in
            length = int(rng.integers(1, 5))
            bad.append((*context[-length:], int(rng.integers(0, VOCAB))))
        seqs = [make_sequence(SamplingParams(bad_words_ids=bad), c[:20], c[20:]) for c in contexts]
        processor = NoBadWordsLogitsProcessor([list(word) for word in bad])
        expected = processor(torch.tensor(contexts), logits.clone())
        changed = ruled(logits, seqs)
        assert torch.equal(changed, expected)
        num_banned += int(torch.isinf(changed).sum()) - 3 * BATCH
    assert num_banned >= NUM_ROWS // 10, "the sequences were never completed"


def test_presence_and_frequency_equal_the_formula() -> None:
    for logits, contexts, rng in batches(3):
        presence, frequency = rng.uniform(-2, 2, size=(2, BATCH))
        seqs = [
            make_sequence(
                SamplingParams(presence_penalty=p, frequency_penalty=f), context[:8], context[8:]
            )
            for p, f, context in zip(presence, frequency, contexts, strict=True)
        ]
        counts = np.stack([np.bincount(context[8:], minlength=VOCAB) for context in contexts])
        expected = logits.numpy().astype(np.float64)
        expected = expected - counts * frequency[:, None] - (counts > 0) * presence[:, None]
        np.testing.assert_allclose(ruled(logits, seqs).numpy(), expected, rtol=0, atol=1e-5)


def test_all_rules_together_come_in_their_order() -> None:
    """The plain way, row by row in float64, on rows with any mixture of rules."""
    for logits, contexts, rng in batches(4)[:4]:
        seqs, expected = [], []
        for row, context in zip(logits.numpy(), contexts, strict=True):
            sampling = random_sampling(rng)
            seqs.append(make_sequence(sampling, context[:12], context[12:]))
            expected.append(plainly(row.astype(np.float64), sampling, context[:12], context[12:]))
        has_rules = [i for i, seq in enumerate(seqs) if seq.has_rules]
        assert len(has_rules) > BATCH // 2
        changed = ruled(logits[has_rules], [seqs[i] for i in has_rules])
        np.testing.assert_allclose(changed.numpy(), np.stack(expected)[has_rules], atol=2e-5)


def random_sampling(rng: np.random.Generator) -> SamplingParams:
    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.choice(VOCAB, size=count, replace=False)]

    fields: dict[str, object] = {
        "repetition_penalty": float(rng.uniform(0.5, 2)),
        "presence_penalty": float(rng.uniform(-2, 2)),
        "frequency_penalty": float(rng.uniform(-2, 2)),
        "logit_bias": {i: float(rng.uniform(-100, 100)) for i in ids(5)},
        "allowed_token_ids": ids(50),
        "bad_words_ids": [[i] for i in ids(3)],
        "min_tokens": int(rng.integers(1, 30)),
        "stop_token_ids": ids(2),
        "ignore_eos": bool(rng.random() < 0.5),
    }
    return SamplingParams(**{k: v for k, v in fields.items() if rng.random() < 0.4})  # type: ignore[arg-type]


def plainly(
    row: np.ndarray, sampling: SamplingParams, prompt: list[int], output: list[int]
) -> np.ndarray:
    for token_id, bias in sampling.logit_bias.items():
        row[token_id] += bias
    if sampling.allowed_token_ids:
        row[np.setdiff1d(np.arange(len(row)), sampling.allowed_token_ids)] = -np.inf
    for word in sampling.bad_words_ids:
        row[word[0]] = -np.inf
    if len(output) < sampling.min_tokens:
        row[list(sampling.stop_token_ids)] = -np.inf
        if not sampling.ignore_eos:
            row[list(EOS)] = -np.inf
    seen = np.unique(prompt + output)
    penalty = sampling.repetition_penalty
    row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
    for token_id in set(output):
        row[token_id] -= sampling.frequency_penalty * output.count(token_id)
        row[token_id] -= sampling.presence_penalty
    return row


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    logits, contexts, rng = batches(5)[0]
    seqs = [make_sequence(random_sampling(rng), c[:12], c[12:]) for c in contexts]
    has_rules = [i for i, seq in enumerate(seqs) if seq.has_rules]
    together = ruled(logits[has_rules], [seqs[i] for i in has_rules])
    for i, changed in zip(has_rules, together, strict=True):
        assert torch.equal(ruled(logits[i : i + 1], [seqs[i]])[0], changed)


def test_a_bad_word_may_begin_with_the_whole_context() -> None:
    logits = torch.zeros(1, VOCAB)
    seq = make_sequence(SamplingParams(bad_words_ids=[[5, 6], [4, 5, 8], [5, 5, 9]]), [5], [])
    assert torch.isinf(ruled(logits, [seq]))[0].nonzero().flatten().tolist() == [6]
    seq.append(5)
    assert torch.isinf(ruled(logits, [seq]))[0].nonzero().flatten().tolist() == [6, 9]


def test_min_tokens_holds_until_so_many_are_there() -> None:
    seq = make_sequence(SamplingParams(min_tokens=2, stop_token_ids=[3]), [1], [])
    for num_output in range(4):
        banned = torch.isinf(ruled(torch.zeros(1, VOCAB), [seq]))[0].nonzero().flatten().tolist()
        assert banned == ([3, 7, 9] if num_output < 2 else [])
        seq.append(50)


def test_outputs_of_an_earlier_attempt_count() -> None:
    sampling = SamplingParams(presence_penalty=1.0, repetition_penalty=1.5, min_tokens=3)
    grown = make_sequence(sampling, [1, 2], [3, 3, 4])
    given = Sequence("s", [1, 2, 3, 3, 4], 2, sampling, b"", eos_token_ids=EOS)
    logits = torch.from_numpy(np.random.default_rng(6).normal(size=(1, VOCAB)).astype(np.float32))
    assert torch.equal(ruled(logits, [grown]), ruled(logits, [given]))


@pytest.mark.parametrize(
    "off",
    [
        {},
        {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        {"logit_bias": {}, "bad_words_ids": [], "allowed_token_ids": [], "min_tokens": 0},
    ],
)
def test_off_values_make_no_rules(off: dict[str, object]) -> None:
    seq = make_sequence(SamplingParams(**off), [1], [2])  # type: ignore[arg-type]
    assert seq.is_plain and not seq.has_rules


@pytest.mark.parametrize("cut", ["min_p", "top_k", "top_p"])
def test_cuts_keep_what_those_of_transformers_keep(cut: str) -> None:
    """Of 10,000 rows; a token within rounding of the edge may go either way."""
    num_kept = 0
    for logits, _, rng in batches(7):
        for row in logits:
            value = float(rng.uniform(0.01, 0.99))
            match cut:
                case "min_p":
                    sampling, warper = SamplingParams(min_p=value), MinPLogitsWarper(value)
                case "top_k":
                    count = int(rng.integers(2, VOCAB))
                    sampling, warper = SamplingParams(top_k=count), TopKLogitsWarper(count)
                case _:
                    sampling, warper = SamplingParams(top_p=value), TopPLogitsWarper(value)
            expected = torch.isfinite(warper(torch.zeros(1, 1), row[None].clone()))[0].numpy()
            kept = kept_by_sampler(row.numpy(), sampling)
            differs = np.flatnonzero(kept != expected)
            if len(differs):
                assert is_near_the_edge(row.numpy(), sampling, differs)
            num_kept += int(kept.sum())
    assert NUM_ROWS * 2 < num_kept < NUM_ROWS * VOCAB


def kept_by_sampler(row: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """The tokens that some draw of the sampler can give."""
    order = np.argsort(-row, kind="stable")
    # Draws follow the order, so that the greatest uniform gives the last one kept.
    last = draw(row, sampling, 1.0 - 2.0**-53)
    kept = np.zeros(len(row), dtype=bool)
    kept[order[: int(np.flatnonzero(order == last)[0]) + 1]] = True
    return kept


def is_near_the_edge(row: np.ndarray, sampling: SamplingParams, differs: np.ndarray) -> bool:
    probabilities = np.exp(row.astype(np.float64) - row.max())
    if len(differs) > 1:
        return False
    if sampling.min_p > 0:
        return abs(probabilities[differs[0]] - sampling.min_p) < 1e-6
    probabilities /= probabilities.sum()
    order = np.argsort(-row, kind="stable")
    place = int(np.flatnonzero(order == differs[0])[0])
    before = probabilities[order[:place]].sum()
    return abs(before - sampling.top_p) < 1e-6


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "temperature": 0.7,
            "min_p": 0.02,
            "logit_bias": {3: 1.5},
            "bad_words_ids": [[4]],
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.2,
        },
    ],
    ids=["plain", "ruled"],
)
def test_100_000_seeded_draws_follow_the_distribution(fields: dict[str, object]) -> None:
    """Chi-square against the formula in float64; every draw has a seed of its own."""
    num_draws, num_tokens = 100_000, 24
    row = np.random.default_rng(8).normal(scale=1.5, size=num_tokens).astype(np.float32)
    prompt, output = [1, 2, 3], [5, 5, 6]
    sampling = SamplingParams(**fields, seed=0)  # type: ignore[arg-type]
    counts = np.zeros(num_tokens)
    logits = torch.from_numpy(np.tile(row, (1000, 1)))
    seqs = [make_sequence(sampling, prompt, output) for _ in range(1000)]
    for start in range(0, num_draws, 1000):
        for seed, seq in enumerate(seqs, start):
            seq.draw_seed = seed
        counts += np.bincount(choose(logits, seqs), minlength=num_tokens)  # type: ignore[arg-type]
    weights = plainly(row.astype(np.float64), sampling, prompt, output) / sampling.temperature
    weights = np.exp(weights - weights.max())
    weights[weights < sampling.min_p] = 0.0
    expected = num_draws * weights / weights.sum()
    is_possible = expected > 0
    assert counts[~is_possible].sum() == 0
    statistic = ((counts - expected)[is_possible] ** 2 / expected[is_possible]).sum()
    degrees = int(is_possible.sum()) - 1
    # 99.9 % of fair draws, by Wilson and Hilferty's approximation.
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
