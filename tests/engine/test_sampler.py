"""The draw: equal to a full sort, independent of neighbours, safe at every limit (C20)."""

import itertools

import numpy as np
import pytest
import torch

from octavo.engine.errors import InvalidLogits
from octavo.engine.sampler import draw, sample
from octavo.engine.sequence import Sequence
from octavo.kernels.cpu.softmax_weights import weigh
from octavo.kernels.cpu.team import HelperCore, Team
from octavo.kernels.cpu.token_draw import UNSURE, draw_rows
from octavo.sampling_params import SamplingParams

VOCAB = 500
TINY_STEP = 2.0**-53


def sorted_draw(logits: np.ndarray, sampling: SamplingParams, uniform: float) -> int:
    """What the sampler promises, the plain way: sort everything, then cut and draw."""
    weights = weigh(logits, float(logits.max()), sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    is_kept = weights >= sampling.min_p
    kept = order[is_kept[order]]
    total = weights[is_kept].sum()
    if 0 < sampling.top_k < len(logits) and sampling.top_k <= len(kept):
        kept = kept[: sampling.top_k]
        total = np.cumsum(weights[kept])[-1]
    cumulative = np.cumsum(weights[kept])
    if sampling.top_p < 1.0:
        reaches = np.flatnonzero(cumulative >= sampling.top_p * total)
        if len(reaches):
            kept, cumulative = kept[: reaches[0] + 1], cumulative[: reaches[0] + 1]
            total = cumulative[-1]
    exceeds = np.flatnonzero(cumulative > uniform * total)
    last_nonzero = np.flatnonzero(weights[kept] > 0)[-1]
    return int(kept[min(exceeds[0] if len(exceeds) else last_nonzero, last_nonzero)])


def make_logits(kind: str, rng: np.random.Generator) -> np.ndarray:
    logits = rng.normal(size=VOCAB).astype(np.float32)
    match kind:
        case "peaked":
            return logits * np.float32(8)
        case "flat":
            return logits * np.float32(0.01)
        case "tied":
            return np.round(logits).astype(np.float32)
        case "masked":
            logits[rng.random(VOCAB) < 0.9] = -np.inf
            return logits
    return logits * np.float32(3)


@pytest.mark.parametrize("kind", ["peaked", "normal", "flat", "tied", "masked"])
def test_every_draw_equals_that_of_a_full_sort(kind: str) -> None:
    rng = np.random.default_rng(3)
    choices = itertools.product(
        (1e-4, 0.7, 1.0, 5.0, 1e30),
        (0, 2, 40, VOCAB - 1, VOCAB, VOCAB + 1),
        (1e-9, 0.5, 0.95, 1.0),
        (0.0, 1e-9, 0.05, 0.9),
    )
    for temperature, top_k, top_p, min_p in choices:
        sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        logits = make_logits(kind, rng)
        for uniform in (0.0, float(rng.random()), float(rng.random()), 1.0 - TINY_STEP):
            assert draw(logits, sampling, uniform) == sorted_draw(logits, sampling, uniform)


@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 5.0, 1e30])
@pytest.mark.parametrize("num_logits", [1, 7, 1024, 5000])
def test_weights_are_those_of_numpys_exponential(temperature: float, num_logits: int) -> None:
    logits = np.random.default_rng(7).normal(scale=8.0, size=num_logits).astype(np.float32)
    logits = np.minimum(logits, np.float32(20.0))
    logits[::9] = -np.inf
    logits[0] = 20.0
    with np.errstate(under="ignore", over="ignore"):
        expected = np.exp((logits.astype(np.float64) - 20.0) / temperature)
    weights = weigh(logits, 20.0, temperature)
    # Numbers below the least normal one are 0.
    np.testing.assert_allclose(weights, expected, rtol=1e-15, atol=1e-307)
    assert weights[0] == 1.0


def make_sequences(samplings: list[SamplingParams]) -> list[Sequence]:
    return [
        Sequence(f"s{i}", [1, 2, 3 + i], 2, sampling, b"") for i, sampling in enumerate(samplings)
    ]


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    rng = np.random.default_rng(5)
    kinds = ["peaked", "normal", "flat", "tied", "masked"] * 4
    logits = torch.from_numpy(np.stack([make_logits(kind, rng) for kind in kinds]))
    seqs = make_sequences(
        [
            SamplingParams(seed=i, temperature=i % 3 * 0.6, top_k=i % 4 * 5, top_p=1 - i % 2 * 0.3)
            for i in range(len(kinds))
        ]
    )
    together = sample(logits, seqs)
    assert together == [sample(logits[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]
    assert together[::-1] == sample(logits.flip(0), seqs[::-1])


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=temperature, seed=1)
        for temperature in (0.0, 1e-45, 1e-8, 1e-5 / 2)
    ]
    + [SamplingParams(top_k=1), SamplingParams(top_p=0.0), SamplingParams(min_p=1.0)]
    + [SamplingParams(temperature=1e30, top_k=1), SamplingParams(temperature=1e-4, seed=1)],
    ids=str,
)  # fmt: skip
def test_the_edges_of_every_range_are_greedy(sampling: SamplingParams) -> None:
    rng = np.random.default_rng(7)
    logits = torch.from_numpy(np.stack([make_logits("normal", rng) for _ in range(9)]))
    neighbours = [SamplingParams(seed=i, temperature=0.8) for i in range(8)]
    seqs = make_sequences([*neighbours, sampling])
    chosen = sample(logits, seqs)
    assert chosen[8] == int(logits[8].argmax())
    assert chosen[:8] == sample(logits[:8], seqs[:8])


@pytest.mark.parametrize(
    "off", [{"top_k": -1}, {"top_k": 0}, {"top_k": VOCAB}, {"top_k": VOCAB + 1}], ids=str
)
def test_off_values_mean_off(off: dict[str, int]) -> None:
    logits = torch.from_numpy(make_logits("normal", np.random.default_rng(9)))[None]
    for seed in range(50):
        plain, switched = SamplingParams(seed=seed), SamplingParams(seed=seed, **off)
        assert sample(logits, make_sequences([plain])) == sample(logits, make_sequences([switched]))


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    assert sample(logits, make_sequences([SamplingParams(temperature=0.0)] * 2)) == [1, 0]


def test_a_masked_token_is_never_drawn() -> None:
    logits = np.full(VOCAB, -np.inf, dtype=np.float32)
    logits[[3, 77]] = 1.0
    for temperature in (1.0, 1e30):
        sampling = SamplingParams(temperature=temperature)
        drawn = {draw(logits, sampling, u) for u in (0.0, 0.4, 0.6, 1.0 - TINY_STEP)}
        assert drawn == {3, 77}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_without_usable_logits_is_named_and_its_neighbours_are_exact(
    temperature: float, bad: float
) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 9] = 50.0
    logits[1, 100] = bad
    seqs = make_sequences([SamplingParams(temperature=temperature, seed=1)] * 3)
    first, second, third = sample(logits, seqs)
    assert (first, third) == (9, 9)
    assert isinstance(second, InvalidLogits)
    assert "sequence s1 is" in str(second)


def test_a_row_with_everything_masked_is_an_error() -> None:
    (chosen,) = sample(torch.full((1, 8), -torch.inf), make_sequences([SamplingParams(seed=1)]))
    assert isinstance(chosen, InvalidLogits)


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    count = 4000
    seqs = make_sequences([SamplingParams(seed=seed) for seed in range(count)])
    chosen = [int(token) for token in sample(logits.expand(count, 4).contiguous(), seqs)]  # type: ignore[call-overload]
    expected = torch.softmax(logits[0], dim=0).numpy() * count
    chi_square = float(((np.bincount(chosen, minlength=4) - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 99.9 % of fair draws with 3 degrees of freedom


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["peaked", "normal", "flat", "tied", "masked"])
def test_rows_drawn_at_once_are_the_rules_own(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(11)
    choices = itertools.product(
        (1e-4, 0.7, 1.0, 5.0, 1e30),
        (0, 2, 40, VOCAB - 1, VOCAB + 1),
        (0.0, 1e-9, 0.5, 0.95, 1.0),
        (0.0, 1e-9, 0.05, 0.9),
    )
    samplings = [SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m) for t, k, p, m in choices]
    logits = torch.from_numpy(np.stack([make_logits(kind, rng) for _ in samplings])).to(dtype)
    uniforms = rng.random(len(samplings))
    greatest = logits.float().amax(dim=1).double().numpy()
    ranges = [(s.temperature, s.top_p, s.min_p) for s in samplings]
    numbers = np.column_stack([greatest, ranges, uniforms])
    top_ks = np.array([s.top_k for s in samplings])
    drawn = draw_rows(logits, np.arange(len(samplings)), numbers, top_ks)
    expected = [
        draw(row.float().numpy(), sampling, float(uniform))
        for row, sampling, uniform in zip(logits, samplings, uniforms, strict=True)
    ]
    is_sure = drawn != UNSURE
    np.testing.assert_array_equal(drawn[is_sure], np.array(expected)[is_sure])
    assert is_sure.mean() > 0.5


@pytest.mark.parametrize("size", [49_152, 128_256])
def test_large_rows_are_drawn_without_a_second_look(size: int) -> None:
    rng = np.random.default_rng(13)
    scales = np.array([0.01, 1.0, 3.0, 8.0] * 8, dtype=np.float32)[:, None]
    logits = torch.from_numpy(rng.normal(size=(32, size)).astype(np.float32) * scales)
    samplings = [
        SamplingParams(temperature=0.8, top_p=[0.95, 1.0, 0.5][i % 3], top_k=[0, 50][i % 2])
        for i in range(32)
    ]
    uniforms = rng.random(32)
    greatest = logits.amax(dim=1).double().numpy()
    ranges = [(s.temperature, s.top_p, s.min_p) for s in samplings]
    top_ks = np.array([s.top_k for s in samplings])
    drawn = draw_rows(logits, np.arange(32), np.column_stack([greatest, ranges, uniforms]), top_ks)
    assert drawn.tolist() == [
        draw(logits[i].numpy(), samplings[i], float(uniforms[i])) for i in range(32)
    ]


def test_a_team_draws_the_same() -> None:
    logits = torch.randn(40, 5_000)
    seqs = make_sequences([SamplingParams(seed=i, top_p=0.9) for i in range(40)])
    alone = sample(logits, seqs)
    team = Team([HelperCore()] * 2)
    with team.at_work():
        assert sample(logits, seqs) == alone
    team.close()


def test_sixteen_bit_logits_give_the_tokens_of_their_float32_values() -> None:
    logits = torch.randn(12, 5_000).bfloat16()
    samplings = [SamplingParams(seed=i, temperature=i % 2 * 0.8) for i in range(12)]
    seqs = make_sequences(samplings)
    assert sample(logits, seqs) == sample(logits.float(), seqs)


def test_where_rounding_could_decide_the_rule_does(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(1, 4)  # half of the total is just where the third token begins
    numbers = np.array([[0.0, 1.0, 1.0, 0.0, 0.5]])
    assert draw_rows(logits, np.zeros(1, np.int64), numbers, np.zeros(1, np.int64)) == [UNSURE]
    monkeypatch.setattr("octavo.engine.sampler.token_uniforms", lambda *_: np.array([0.5]))
    assert sample(logits, make_sequences([SamplingParams(seed=1)])) == [2]
