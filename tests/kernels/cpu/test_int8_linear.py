"""int8 linear layers: against float64, against their own arithmetic in torch, row by row."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from octavo.kernels.cpu import int8_linear
from octavo.kernels.cpu.vector import UnsupportedDtype
from octavo.kernels.select import UnsupportedQuantization, for_device, packer_for

# A step of the result's own dtype, relative.
STEP = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = list(STEP)
SHAPES = [(960, 576), (576, 1536), (64, 64), (33, 17), (1, 4), (130, 7)]


def layer(n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias; outputs of very unequal size, as real layers have."""
    weight = torch.randn(n, k) * torch.logspace(-3, 1, n)[:, None]
    return weight.to(dtype), torch.randn(n).to(dtype)


def grouped(x: torch.Tensor) -> torch.Tensor:
    """x [T, K] as [T, groups, size], padded with zeros."""
    count, size = int8_linear.group_shape(x.shape[1])
    return functional.pad(x, (0, count * size - x.shape[1])).view(len(x), count, size)


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Rows as int8 keeps them, as float64."""
    groups = grouped(x.float())
    highest = groups.abs().amax(dim=2, keepdim=True)
    levels = (groups * (torch.tensor(127.0) / highest)).round()  # highest.reciprocal() differs
    return (levels.double() * (highest / 127).double()).flatten(1)[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_computes_what_it_quantised(n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = layer(n, k, dtype)
    x = (torch.randn(13, k) * 3).to(dtype)
    got = int8_linear.pack_linear(weight, bias)(x)
    levels, scale = int8_linear.quantize(weight)
    products = quantized(x) @ levels.double().T * scale.double()
    expected = products + bias.double()
    assert got.dtype == dtype
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    sizes = quantized(x).abs() @ levels.double().abs().T * scale.double()
    room = STEP[dtype] * expected.abs() + 1e-6 * sizes + least
    assert ((got.double() - expected).abs() <= room).all()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_error_is_within_half_a_level_of_every_factor(n: int, k: int) -> None:
    weight, bias = layer(n, k, torch.float32)
    x = torch.randn(9, k) * 2
    got = int8_linear.pack_linear(weight, bias)(x)
    expected = functional.linear(x.double(), weight.double(), bias.double())
    half_levels = grouped(x).abs().amax(2) / 254
    half_x = half_levels.repeat_interleave(int8_linear.group_shape(k)[1], dim=1)[:, :k].double()
    half_w = (weight.abs().amax(dim=1, keepdim=True) / 254).double()
    bound = (
        x.double().abs().sum(1, keepdim=True) * half_w.T
        + half_x @ weight.double().abs().T
        + half_x.sum(1, keepdim=True) * half_w.T
    )
    assert ((got.double() - expected).abs() <= bound * 1.001 + expected.abs() * 1e-6 + 1e-9).all()
    # Errors of many factors cancel: what is typical lies far below what is possible.
    if k >= 64:
        assert (got.double() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 64, 240, 241, 300])
def test_a_row_has_the_same_bits_in_any_batch(num_rows: int, dtype: torch.dtype) -> None:
    weight, bias = layer(100, 70, dtype)
    linear = int8_linear.pack_linear(weight, bias)
    x = torch.randn(500, 70).to(dtype)
    whole = linear(x)
    assert torch.equal(linear(x[:num_rows]), whole[:num_rows])
    assert torch.equal(linear(x[-num_rows:]), whole[-num_rows:])


def test_rows_may_be_a_strided_view_and_may_be_none() -> None:
    weight, _ = layer(64, 32, torch.float32)
    linear = int8_linear.pack_linear(weight, None)
    wide = torch.randn(5, 48)
    assert torch.equal(linear(wide[:, 8:40]), linear(wide[:, 8:40].contiguous()))
    assert torch.equal(linear(wide.T[:32].T), linear(wide[:, :32].contiguous()))
    assert linear(wide[:0, :32]).shape == (0, 64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_shows_and_spoils_no_other(value: float) -> None:
    weight, bias = layer(64, 50, torch.float32)
    linear = int8_linear.pack_linear(weight, bias)
    x = torch.randn(8, 50)
    clean = linear(x)
    x[3, 49] = value
    got = linear(x)
    assert not got[3].isfinite().any()
    assert torch.equal(got[[0, 1, 2, 4, 5, 6, 7]], clean[[0, 1, 2, 4, 5, 6, 7]])


def test_zeros_give_the_bias() -> None:
    weight, bias = layer(40, 24, torch.float32)
    weight[7] = 0
    linear = int8_linear.pack_linear(weight, bias)
    assert torch.equal(linear(torch.zeros(2, 24)), bias.expand(2, 40))
    assert torch.equal(linear(torch.randn(3, 24))[:, 7], bias[7].expand(3))


@pytest.mark.parametrize("depth", [1, 15, 16, 63, 64, 65, 576, 1536, 2048, 5000, 14336])
def test_groups_cover_a_row_and_waste_little(depth: int) -> None:
    count, size = int8_linear.group_shape(depth)
    assert size % 16 == 0
    assert depth <= count * size < depth + 16 * count
    assert depth < 128 or 32 <= size <= 128


def test_extreme_bytes_do_not_overflow() -> None:
    """All factors at the largest level, the sum as long as a large model's."""
    depth = 28672
    linear = int8_linear.pack_linear(torch.ones(2, depth) * torch.tensor([[1.0], [-1.0]]), None)
    got = linear(torch.ones(1, depth))
    torch.testing.assert_close(got, torch.tensor([[depth, -depth]]).float(), rtol=1e-6, atol=0)


def test_a_cpu_without_such_instructions_computes_the_same(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from octavo.kernels.cpu import int8_linear; torch.manual_seed(1);"
        "w, b, x = torch.randn(70, 130), torch.randn(70), torch.randn(9, 130);"
        "int8_linear.pack_linear(w, b)(x).numpy().tofile(sys.argv[1])"
    )
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    results = []
    for name, environment in (("own", {}), ("plain", plain)):
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        subprocess.run(command, env=os.environ | environment, check=True)
        results.append(torch.from_numpy(np.fromfile(tmp_path / name, dtype=np.float32)))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-6)


def test_what_cannot_be_quantised_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedDtype, match="float64"):
        int8_linear.pack_linear(torch.zeros(4, 4, dtype=torch.float64), None)
    kernels = for_device(torch.device("cpu"))
    with pytest.raises(UnsupportedQuantization, match="int8 does not run on cuda"):
        packer_for(kernels, torch.device("cuda"), "int8")
