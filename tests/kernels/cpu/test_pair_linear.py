"""Linear layers by bfloat16 instructions: against float64, row by row, by any number of threads."""

import pytest
import torch
from torch.nn import functional

from octavo.kernels.cpu.amx import HAS_AMX_BF16
from octavo.kernels.cpu.linear import is_shared, pack_linear
from octavo.kernels.cpu.pair_dot import HAS_PAIRS
from octavo.kernels.cpu.pair_linear import pair_product
from octavo.kernels.cpu.panel_linear import PanelLinear
from octavo.kernels.cpu.team import HelperCore, Team

TILES = pytest.param(
    True, id="tiles", marks=pytest.mark.skipif(not HAS_AMX_BF16, reason="no AMX-BF16 here")
)
DOTS = pytest.param(
    False, id="dots", marks=pytest.mark.skipif(not HAS_PAIRS, reason="no AVX512-BF16 here")
)
SHAPES = [(960, 576), (576, 1536), (64, 64), (33, 17), (1, 1), (130, 7), (50, 95), (81, 34)]
has_tiles = pytest.mark.parametrize("has_tiles", [TILES, DOTS])


def layer(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, k).bfloat16(), torch.randn(n).bfloat16()


@has_tiles
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_is_one_rounding_from_float64(n: int, k: int, has_tiles: bool) -> None:
    weight, bias = layer(n, k)
    all_rows = torch.randn(70, k).bfloat16()
    for b in (None, bias):
        linear = PanelLinear(weight, b, pair_product(has_tiles))
        wide_bias = None if b is None else b.double()
        expected = functional.linear(all_rows.double(), weight.double(), wide_bias)
        sizes = functional.linear(all_rows.double().abs(), weight.double().abs()) + 1
        room = 2**-8 * expected.abs() * 1.001 + k * 2**-24 * sizes
        for num_rows in range(1, 71):
            got = linear(all_rows[:num_rows])
            assert got.dtype == torch.bfloat16
            assert ((got.double() - expected[:num_rows]).abs() <= room[:num_rows]).all()


@has_tiles
@pytest.mark.parametrize(("n", "k"), [(100, 71), (200, 1536)])
def test_a_row_has_the_same_bits_in_any_batch(n: int, k: int, has_tiles: bool) -> None:
    weight, bias = layer(n, k)
    linear = PanelLinear(weight, bias, pair_product(has_tiles))
    x = torch.randn(600, k).bfloat16()
    whole = linear(x)
    for num_rows in (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 130, 555):
        assert torch.equal(linear(x[:num_rows]), whole[:num_rows])
        assert torch.equal(linear(x[-num_rows:]), whole[-num_rows:])


@has_tiles
@pytest.mark.parametrize("num_rows", [1, 8, 20, 150, 900])
def test_any_number_of_threads_gives_the_same_bits(num_rows: int, has_tiles: bool) -> None:
    weight, bias = layer(1100, 600)
    linear = PanelLinear(weight, bias, pair_product(has_tiles))
    x = torch.randn(num_rows, 600).bfloat16()
    alone = linear(x)
    for num_helpers in (1, 2, 3):
        team = Team([HelperCore()] * num_helpers)
        with team.at_work():
            for _ in range(5):
                assert torch.equal(linear(x), alone)
        team.close()


@has_tiles
@pytest.mark.parametrize("k", [33, 64])
def test_rows_do_not_see_each_other_nor_what_lies_beside_them(k: int, has_tiles: bool) -> None:
    weight, bias = layer(40, k)
    linear = PanelLinear(weight, bias, pair_product(has_tiles))
    wide = torch.full((20, k + 40), float("nan")).bfloat16()
    wide[:, 8 : k + 8] = torch.randn(20, k)
    x = wide[:, 8 : k + 8]
    clean = linear(x)
    assert clean.isfinite().all()
    assert torch.equal(linear(x.contiguous()), clean)
    x[3] = float("nan")
    got = linear(x)
    assert got[3].isnan().all()
    assert torch.equal(got[:3], clean[:3]) and torch.equal(got[4:], clean[4:])


@has_tiles
def test_rows_may_be_columns_and_may_be_none(has_tiles: bool) -> None:
    weight, _ = layer(64, 32)
    linear = PanelLinear(weight, None, pair_product(has_tiles))
    wide = torch.randn(5, 48).bfloat16()
    assert torch.equal(linear(wide.T[:32].T), linear(wide[:, :32].contiguous()))
    assert linear(wide[:0, :32]).shape == (0, 64)


@has_tiles
@pytest.mark.parametrize("start", [1, 8, 32])
def test_rows_may_begin_inside_a_cache_line(start: int, has_tiles: bool) -> None:
    weight, bias = layer(64, 64)
    linear = PanelLinear(weight, bias, pair_product(has_tiles))
    wide = torch.randn(40, 103).bfloat16()
    x = wide[:, start : start + 64]
    assert torch.equal(linear(x), linear(x.contiguous()))


def test_helpers_take_part_in_bfloat16_products_where_these_are_our_own() -> None:
    is_ours = isinstance(pack_linear(torch.zeros(4, 4).bfloat16(), None), PanelLinear)
    assert is_shared(torch.bfloat16, None) == is_ours
    assert is_ours or not (HAS_AMX_BF16 or HAS_PAIRS)
