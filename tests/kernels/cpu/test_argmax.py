"""The greatest logit and its first place are torch's, in every dtype, at every size."""

import numpy as np
import pytest
import torch

from octavo.kernels.cpu.argmax import STRIP, argmax
from octavo.kernels.cpu.team import HelperCore, Team

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [1, 7, 16, 17, 33, STRIP, STRIP + 5, 3 * STRIP + 31, 49_152]


def check(logits: torch.Tensor) -> None:
    greatest, places = argmax(logits)
    expected = logits.float().max(dim=-1)
    assert greatest.tolist() == expected.values.tolist()
    assert places.tolist() == logits.float().argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_row_is_that_of_torch(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    check(torch.randn(9, size).to(dtype))
    check(torch.randn(9, size).sub(50).to(dtype))  # a zero of padding would be the greatest
    check(torch.randn(4, size + 3).to(dtype)[:, :size])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_equal_logits_the_first_counts(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    logits = torch.zeros(40, 2 * STRIP + 9, dtype=dtype)
    for row in logits:
        row[torch.from_numpy(rng.integers(0, len(row), 3))] = 2.0
    check(logits)
    check(torch.zeros(2, 50, dtype=dtype))
    signs = torch.tensor([[-0.0, 0.0], [0.0, -0.0]], dtype=dtype)
    check(torch.cat([torch.full((2, STRIP), -1.0, dtype=dtype), signs], dim=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_are_numbers(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 2 * STRIP + 3).to(dtype)
    logits[0, [5, STRIP + 1]] = torch.inf
    logits[1] = -torch.inf
    logits[2, : 2 * STRIP] = -torch.inf
    check(logits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("place", [0, 15, STRIP + 40, 2 * STRIP + 8])
def test_a_nan_makes_its_row_nan_alone(place: int, sign: float, dtype: torch.dtype) -> None:
    logits = torch.randn(3, 2 * STRIP + 9).to(dtype)
    logits[1, place] = torch.tensor(torch.nan).copysign(torch.tensor(sign))
    logits[1, STRIP] = torch.inf
    greatest, places = argmax(logits)
    assert np.isnan(greatest).tolist() == [False, True, False]
    assert places[[0, 2]].tolist() == logits[[0, 2]].float().argmax(dim=-1).tolist()


def test_a_team_finds_the_same() -> None:
    logits = torch.randn(65, 49_152).bfloat16()
    alone = argmax(logits)
    team = Team([HelperCore()] * 2)
    with team.at_work():
        shared = argmax(logits)
    team.close()
    assert (shared[0] == alone[0]).all() and (shared[1] == alone[1]).all()
