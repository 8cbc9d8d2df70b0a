"""Linear layers in float32 arithmetic: against float64, row by row, by any number of threads."""

import pytest
import torch
from torch.nn import functional

from octavo.kernels.cpu.panel_linear import PanelLinear
from octavo.kernels.cpu.team import HelperCore, Team
from octavo.kernels.cpu.vector import UnsupportedDtype

# Half a step of the result's own dtype, relative.
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = list(ROUNDING)
SHAPES = [(960, 576), (576, 1536), (64, 64), (33, 17), (1, 1), (130, 7)]


def layer(n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_is_one_rounding_from_float64(n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = layer(n, k, dtype)
    x = torch.randn(13, k).to(dtype)
    for b in (None, bias):
        got = PanelLinear(weight, b)(x)
        wide_bias = None if b is None else b.double()
        expected = functional.linear(x.double(), weight.double(), wide_bias)
        sizes = functional.linear(x.double().abs(), weight.double().abs()) + 1
        room = ROUNDING[dtype] * expected.abs() * 1.001 + k * 2**-24 * sizes
        assert got.dtype == dtype
        assert ((got.double() - expected).abs() <= room).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(100, 71), (200, 1536)])
def test_a_row_has_the_same_bits_in_any_batch(n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = layer(n, k, dtype)
    linear = PanelLinear(weight, bias)
    x = torch.randn(200, k).to(dtype)
    whole = linear(x)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 65, 130):
        assert torch.equal(linear(x[:num_rows]), whole[:num_rows])
        assert torch.equal(linear(x[-num_rows:]), whole[-num_rows:])


@pytest.mark.parametrize("num_rows", [1, 2, 8, 150])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype, num_rows: int) -> None:
    weight, bias = layer(1100, 600, dtype)
    linear = PanelLinear(weight, bias)
    x = torch.randn(num_rows, 600).to(dtype)
    alone = linear(x)
    for num_helpers in (1, 2, 3):
        team = Team([HelperCore()] * num_helpers)
        with team.at_work():
            for _ in range(5):
                assert torch.equal(linear(x), alone)
        team.close()


def test_rows_do_not_see_each_other() -> None:
    weight, bias = layer(40, 33, torch.bfloat16)
    linear = PanelLinear(weight, bias)
    x = torch.randn(8, 33).bfloat16()
    clean = linear(x)
    x[3] = float("nan")
    got = linear(x)
    assert got[3].isnan().all()
    assert torch.equal(got[[0, 1, 2, 4, 5, 6, 7]], clean[[0, 1, 2, 4, 5, 6, 7]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_be_a_strided_view_and_may_be_none(dtype: torch.dtype) -> None:
    weight, _ = layer(64, 31, dtype)
    linear = PanelLinear(weight, None)
    wide = torch.randn(5, 48).to(dtype)
    assert torch.equal(linear(wide[:, 8:39]), linear(wide[:, 8:39].contiguous()))
    assert torch.equal(linear(wide.T[:31].T), linear(wide[:, :31].contiguous()))
    assert linear(wide[:0, :31]).shape == (0, 64)


def test_what_cannot_be_multiplied_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedDtype, match="float64"):
        PanelLinear(torch.zeros(4, 4, dtype=torch.float64), None)
    with pytest.raises(TypeError, match=r"x must be \[T, 4\] torch.float32"):
        PanelLinear(torch.zeros(4, 4), None)(torch.zeros(2, 5))
