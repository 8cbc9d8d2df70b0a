"""Philox4x32-10 against Random123's published vectors, and the uniforms made of it."""

import numpy as np
import pytest

from octavo.engine.philox import philox4x32, sample_seed, token_uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_known_answers(counter: str, key: str, expected: str) -> None:
    words = philox4x32(column(counter), column(key))
    assert [f"{word:08x}" for word in words[:, 0].tolist()] == expected.split()


def column(words: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in words.split()], dtype=np.uint64)


def test_each_row_depends_on_its_own_seed_and_position_alone() -> None:
    rows = [(0, 0), (2**64 - 1, 7), (1, 2**33), (1, 0), (2, 0), (2**32, 0)]
    together = token_uniforms(*(list(column) for column in zip(*rows, strict=True)))
    alone = [token_uniforms([seed], [at])[0] for seed, at in rows]
    assert together.tolist() == alone
    assert len(set(alone)) == len(rows)


def test_samples_draw_with_the_seeds_that_follow() -> None:
    assert [sample_seed(7, i) for i in range(3)] == [7, 8, 9]
    assert [sample_seed(2**64 - 1, i) for i in range(3)] == [2**64 - 1, 0, 1]


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    count = 100_000
    uniforms = token_uniforms([5] * count, list(range(count)))
    assert uniforms.min() >= 0.0 and uniforms.max() < 1.0
    histogram, _ = np.histogram(uniforms, bins=20, range=(0.0, 1.0))
    expected = count / 20
    chi_square = float(((histogram - expected) ** 2 / expected).sum())
    assert chi_square < 43.8  # 99.9 % of fair draws with 19 degrees of freedom
