"""Triton norms, SiLU-mul and linear against the float64 reference."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu import ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
AssertClose = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (5, 576), (3, 1000), (2, 4096)])
def test_rms_norm_matches_float64(
    assert_close: AssertClose, device: torch.device, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight = (10 * torch.randn(shape)).to(dtype), torch.randn(shape[1]).to(dtype)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert_close(ops.rms_norm(x.to(device), weight.to(device), 1e-5), expected)


def test_rms_norm_of_heads_reads_a_slice_of_a_fused_projection(
    assert_close: AssertClose, device: torch.device
) -> None:
    fused, weight = torch.randn(9, 7, 80), torch.randn(80)
    x = fused[:, 2:5]
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6)
    actual = ops.rms_norm(fused.to(device)[:, 2:5], weight.to(device), 1e-6)
    assert_close(actual, expected)


def test_rms_norm_of_zeros_is_zero(device: torch.device) -> None:
    x = torch.zeros(3, 96, device=device)
    assert torch.equal(ops.rms_norm(x, torch.ones(96, device=device), 1e-6), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (5, 576), (3, 3000)])
def test_add_rms_norm_returns_norm_and_sum(
    assert_close: AssertClose, device: torch.device, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.randn(shape[1]).to(dtype)
    normed, added = reference.add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    actual_normed, actual_added = ops.add_rms_norm(
        x.to(device), residual.to(device), weight.to(device), 1e-5
    )
    assert_close(actual_normed, normed)
    assert_close(actual_added, added)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 1536), (2, 6002)])
def test_silu_mul_matches_float64(
    assert_close: AssertClose, device: torch.device, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    gate_up = (5 * torch.randn(shape)).to(dtype)
    expected = reference.silu_mul(gate_up.double())
    assert_close(ops.silu_mul(gate_up.to(device)), expected)


def test_silu_mul_of_far_values_is_finite(device: torch.device) -> None:
    gate_up = torch.tensor([[-200.0, 200.0, 1.0, 1.0]], device=device)
    assert torch.equal(ops.silu_mul(gate_up).cpu(), torch.tensor([[0.0, 200.0]]))


@pytest.mark.parametrize("has_bias", [True, False])
def test_pack_linear_multiplies_by_the_transposed_weight(
    assert_close: AssertClose, device: torch.device, has_bias: bool
) -> None:
    weight, x = torch.randn(5, 33), torch.randn(4, 33)
    bias = torch.randn(5) if has_bias else None
    linear = ops.pack_linear(weight.to(device), None if bias is None else bias.to(device))
    expected = x.double() @ weight.double().T
    assert_close(linear(x.to(device)), expected if bias is None else expected + bias.double())
