"""Linear layers in int8 and int4: against float64, against plain integers, row by row."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from octavo.kernels.cpu import int4_linear, int8_linear
from octavo.kernels.cpu.byte_dot import GROUP
from octavo.kernels.cpu.quantized_linear import Linear
from octavo.kernels.cpu.team import HelperCore, Team
from octavo.kernels.cpu.vector import UnsupportedDtype
from octavo.kernels.select import UnsupportedQuantization, for_device, packer_for

# A step of the result's own dtype, relative.
STEP = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = list(STEP)
SHAPES = [(960, 576), (576, 1536), (64, 64), (33, 17), (1, 4), (130, 7)]
PACKERS = [int8_linear.pack_linear, int4_linear.pack_linear]
Pack = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def layer(n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias; outputs of very unequal size, as real layers have."""
    weight = torch.randn(n, k) * torch.logspace(-3, 1, n)[:, None]
    return weight.to(dtype), torch.randn(n).to(dtype)


def grouped(x: torch.Tensor) -> torch.Tensor:
    """x [T, K] as [T, groups, GROUP], padded with zeros."""
    return functional.pad(x, (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Rows as they are multiplied, as float64."""
    groups = grouped(x.float())
    highest = groups.abs().amax(dim=2, keepdim=True)
    levels = (groups * (torch.tensor(127.0) / highest)).round()  # highest.reciprocal() differs
    return (levels.double() * (highest / 127).double()).flatten(1)[:, : x.shape[1]]


def kept(pack: Pack, weight: torch.Tensor) -> torch.Tensor:
    """The weights that are multiplied, as float64."""
    if pack is int8_linear.pack_linear:
        levels, scales, powers = int8_linear.quantize(weight)
        found = levels.double() * scales.double()[:, :, None]
    else:
        levels, scales, minima, powers = int4_linear.quantize(weight)
        found = levels.double() * scales.double()[:, :, None] + minima.double()[:, :, None]
    return (found * powers.double()[:, None, None]).flatten(1)[: len(weight), : weight.shape[1]]


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_it_computes_what_it_quantised(pack: Pack, n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = layer(n, k, dtype)
    x = (torch.randn(13, k) * 3).to(dtype)
    got = pack(weight, bias)(x)
    levels = kept(pack, weight)
    expected = quantized(x) @ levels.T + bias.double()
    assert got.dtype == dtype
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    # A half byte's level and its group's minimum may cancel: their sizes count, not their sum's.
    sizes = quantized(x).abs() @ (levels.abs() + weight.abs().amax(1, keepdim=True)).T
    room = STEP[dtype] * expected.abs() + 1e-6 * sizes + least
    assert ((got.double() - expected).abs() <= room).all()


@pytest.mark.parametrize("pack", PACKERS)
def test_sums_of_a_group_are_exact_integers(pack: Pack) -> None:
    """Whole numbers everywhere, the largest among them: nothing saturates, nothing is rounded."""
    top = 127 if pack is int8_linear.pack_linear else 15
    low = -127 if pack is int8_linear.pack_linear else 0
    weight = torch.randint(low, top + 1, (80, 96)).float()
    weight[:, ::32], weight[:, 1::32] = top, low
    weight[0], weight[1] = top, low if low else top
    x = torch.randint(-127, 128, (11, 96)).float()
    x[:, 5::32] = 127
    x[0], x[1] = 127, -127
    got = pack(weight, None)(x)
    assert torch.equal(got, (x.double() @ weight.double().T).float())


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_weight_is_off_by_half_a_level_of_its_group(n: int, k: int) -> None:
    weight, _ = layer(n, k, torch.float32)
    largest = grouped(weight).abs().amax(2).repeat_interleave(GROUP, dim=1)[:, :k].double()
    error = (kept(int8_linear.pack_linear, weight) - weight.double()).abs()
    assert (error <= largest * (0.5 / 127 + 2**-11)).all()
    if k >= 64:
        x = torch.randn(9, k) * 2
        expected = x.double() @ weight.double().T
        sizes = weight.double().norm(dim=1)  # so that all outputs count, not the largest few
        for pack, most in zip(PACKERS, (0.012, 0.1), strict=True):
            error = pack(weight, None)(x).double() - expected
            assert (error / sizes).norm() / (expected / sizes).norm() < most


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_of_a_gguf_file_come_back_unchanged(file_type: str) -> None:
    gguf = pytest.importorskip("gguf")
    qtype = gguf.GGMLQuantizationType[file_type]
    source = (torch.randn(48, 160) * torch.logspace(-2, 0, 48)[:, None]).numpy()
    weight = torch.from_numpy(gguf.dequantize(gguf.quantize(source, qtype), qtype))
    pack = PACKERS[0] if file_type == "Q8_0" else PACKERS[1]
    found = kept(pack, weight)
    torch.testing.assert_close(found.float(), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(pack: Pack, dtype: torch.dtype) -> None:
    weight, bias = layer(100, 70, dtype)
    linear = pack(weight, bias)
    x = torch.randn(2000, 70).to(dtype)
    whole = linear(x)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 64, 241, 1300):
        assert torch.equal(linear(x[:num_rows]), whole[:num_rows])
        assert torch.equal(linear(x[-num_rows:]), whole[-num_rows:])


@pytest.mark.parametrize("pack", PACKERS)
def test_a_team_computes_the_same_bits(pack: Pack) -> None:
    weight, bias = layer(3000, 640, torch.bfloat16)
    linear = pack(weight, bias)
    team = Team([HelperCore(), HelperCore()])
    try:
        for num_rows in (1, 9, 300):
            x = torch.randn(num_rows, 640).bfloat16()
            alone = linear(x)
            with team.at_work():
                assert torch.equal(linear(x), alone)
    finally:
        team.close()


@pytest.mark.parametrize("pack", PACKERS)
def test_rows_may_be_a_strided_view_and_may_be_none(pack: Pack) -> None:
    weight, _ = layer(64, 32, torch.float32)
    linear = pack(weight, None)
    wide = torch.randn(5, 48)
    assert torch.equal(linear(wide[:, 8:40]), linear(wide[:, 8:40].contiguous()))
    assert torch.equal(linear(wide.T[:32].T), linear(wide[:, :32].contiguous()))
    assert linear(wide[:0, :32]).shape == (0, 64)


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_and_spoils_nothing_else(pack: Pack, value: float) -> None:
    weight, bias = layer(64, 50, torch.float32)
    linear = pack(weight, bias)
    x = torch.randn(8, 50)
    clean = linear(x)
    x[3, 49] = value
    got = linear(x)
    assert not got[3].isfinite().any()
    assert torch.equal(got[[0, 1, 2, 4, 5, 6, 7]], clean[[0, 1, 2, 4, 5, 6, 7]])
    weight[9, 40] = value
    got = pack(weight, bias)(x[:3])
    assert not got[:, 9].isfinite().any()
    assert torch.equal(got[:, 10:], clean[:3, 10:])


@pytest.mark.parametrize("pack", PACKERS)
def test_zeros_give_the_bias(pack: Pack) -> None:
    weight, bias = layer(40, 24, torch.float32)
    weight[7] = 0
    linear = pack(weight, bias)
    assert torch.equal(linear(torch.zeros(2, 24)), bias.expand(2, 40))
    assert torch.equal(linear(torch.randn(3, 24))[:, 7], bias[7].expand(3))


@pytest.mark.parametrize("pack", PACKERS)
def test_the_longest_sums_do_not_overflow(pack: Pack) -> None:
    """All factors at the largest level, the sum as long as a large model's."""
    depth = 28672
    linear = pack(torch.ones(2, depth) * torch.tensor([[1.0], [-1.0]]), None)
    got = linear(torch.ones(1, depth))
    torch.testing.assert_close(got, torch.tensor([[depth, -depth]]).float(), rtol=1e-3, atol=0)


@pytest.mark.slow  # compiles everything anew
def test_a_cpu_without_such_instructions_computes_the_same(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from octavo.kernels.cpu import int4_linear, int8_linear;"
        "torch.manual_seed(1);"
        "w, b, x = torch.randn(70, 130), torch.randn(70), torch.randn(9, 130);"
        "torch.cat([m.pack_linear(w, b)(x) for m in (int8_linear, int4_linear)])"
        ".numpy().tofile(sys.argv[1])"
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
        packer_for(kernels, torch.device("cuda"), torch.bfloat16, "int8")
