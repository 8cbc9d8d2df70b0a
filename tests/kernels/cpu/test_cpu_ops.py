"""CPU row operations, KV store and packed linear layers against the reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from octavo.kernels import reference
from octavo.kernels.cpu import ops
from octavo.kernels.cpu.vector import UnsupportedDtype

# At most one rounding apart: sums are taken in another order.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)
SIZES = [576, 48, 100, 16, 7]


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_norms_and_activation_agree_with_the_reference(size: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(5, size).to(dtype), torch.randn(5, size).to(dtype)
    weight, gate_up = torch.randn(size).to(dtype), (torch.randn(5, 2 * size) * 8).to(dtype)
    assert_near(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert_near(ops.silu_mul(gate_up), reference.silu_mul(gate_up))
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    got_normed, got_total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert_near(got_normed, normed)
    assert torch.equal(got_total, total)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_a_fused_projection_are_normed_in_their_place(dtype: torch.dtype) -> None:
    heads, weight = torch.randn(5, 15, 64).to(dtype)[:, 9:12], torch.randn(64).to(dtype)
    assert_near(ops.rms_norm(heads, weight, 1e-6), reference.rms_norm(heads, weight, 1e-6))


def test_silu_is_finite_at_the_ends_of_its_range() -> None:
    gate_up = torch.tensor([[-1e30, -200.0, -100.0, 100.0, 1e30, 0.0] + [1.0] * 6])
    assert_near(ops.silu_mul(gate_up), reference.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 40), (96, 48), (128, 16), (8, 4)])
def test_rotary_turns_query_and_key_in_place(head_dim: int, half: int, dtype: torch.dtype) -> None:
    fused = torch.randn(5, 15, head_dim).to(dtype)
    expected = fused.clone()
    cos, sin = torch.randn(5, half), torch.randn(5, half)
    ops.rotary(fused[:, :9], fused[:, 9:12], cos, sin)
    reference.rotary(expected[:, :9], expected[:, 9:12], cos, sin)
    assert_near(fused, expected)
    assert torch.equal(fused[:, 12:], expected[:, 12:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_rotation_and_store_in_one_pass_agree_with_the_reference(
    has_norms: bool, dtype: torch.dtype
) -> None:
    got, got_kv = torch.randn(6, 15, 80).to(dtype), torch.zeros(5, 3, 2, 3, 8, 80, dtype=dtype)
    expected, expected_kv = got.clone(), got_kv.clone()
    norms = (torch.randn(80).to(dtype), torch.randn(80).to(dtype)) if has_norms else None
    cos, sin = torch.randn(6, 40), torch.randn(6, 40)
    slots = torch.tensor([39, -1, 0, 8, -1, 23])

    def apply(kernels: object, fused: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        heads = fused[:, :9], fused[:, 9:12], fused[:, 12:]
        rotary_store_kv = kernels.rotary_store_kv  # type: ignore[attr-defined]
        queries = rotary_store_kv(*heads, cos, sin, kv[:, 1], slots, norms, 1e-6)
        assert isinstance(queries, torch.Tensor)
        return queries

    assert_near(apply(ops, got, got_kv), apply(reference, expected, expected_kv))
    assert_near(got_kv, expected_kv)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_embedded_as_they_are(size: int, dtype: torch.dtype) -> None:
    weight, token_ids = torch.randn(11, size).to(dtype), torch.tensor([10, 0, 3, 3])
    rows = ops.embed(token_ids, weight)
    assert torch.equal(rows, reference.embed(token_ids, weight))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_without_an_embedding_gives_no_numbers(dtype: torch.dtype) -> None:
    rows = ops.embed(torch.tensor([7, 1, -1]), torch.ones(7, 100, dtype=dtype))
    assert rows.isnan().all(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_land_in_their_slots_and_nowhere_else(dtype: torch.dtype) -> None:
    fused = torch.randn(6, 10, 80).to(dtype)
    got = torch.randn(5, 3, 2, 2, 8, 80).to(dtype)
    expected = got.clone()
    slots = torch.tensor([39, -1, 0, 8, -1, 23])
    ops.store_kv(fused[:, 6:8], fused[:, 8:], got[:, 1], slots)
    reference.store_kv(fused[:, 6:8], fused[:, 8:], expected[:, 1], slots)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(960, 576), (576, 1536), (33, 17)])
def test_a_packed_linear_agrees_and_rows_do_not_see_each_other(
    n: int, k: int, dtype: torch.dtype
) -> None:
    weight, bias = torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)
    x = torch.randn(70, k).to(dtype)
    for b in (None, bias):
        linear = ops.pack_linear(weight, b)
        got = linear(x)
        wide_bias = None if b is None else b.double()
        expected = functional.linear(x.double(), weight.double(), wide_bias)
        error = (got.double() - expected).norm() / expected.norm()
        assert got.dtype == dtype
        assert error < TOLERANCE[dtype]
        poisoned = x.clone()
        poisoned[1:] = float("nan")
        assert torch.equal(linear(poisoned)[0], got[0])
        assert linear(x[:0]).shape == (0, n)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 32, 63])
def test_a_float32_row_has_the_same_bits_in_any_batch(num_rows: int) -> None:
    x = torch.randn(64, 1536)
    linear = ops.pack_linear(torch.randn(576, 1536), None)
    assert torch.equal(linear(x[:num_rows]), linear(x)[:num_rows])


def test_a_dtype_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedDtype, match="float64"):
        ops.silu_mul(torch.zeros(1, 32, dtype=torch.float64))


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_start_whether_or_not_a_cache_can_be_written(
    tmp_path: Path, writable: bool
) -> None:
    cache = tmp_path / "cache"
    if not writable:
        cache.write_text("a file, so that no folder can be made under it")
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    code = (
        "import torch; from octavo.kernels.cpu import ops;"
        "print(ops.silu_mul(torch.ones(1, 32)).shape)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"OCTAVO_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "torch.Size([1, 16])" in result.stdout, result.stderr
    assert writable == any(tmp_path.rglob("*.nbc"))
