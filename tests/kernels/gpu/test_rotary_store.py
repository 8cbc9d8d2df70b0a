"""Triton rotary_store_kv against the separate steps of the reference."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.rotary_store import rotary_store_kv

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
AssertClose = Callable[..., None]
T, GROUP, EPS = 7, 3, 1e-6


@dataclass(frozen=True, slots=True)
class Step:
    """A fused projection of T tokens, its angles and the slots it goes to."""

    fused: torch.Tensor  # [T, (GROUP + 2) * num_kv_heads, head_dim]
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor]

    def heads(self, fused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = fused.shape[1] // (GROUP + 2)
        query, key, value = fused.split([GROUP * count, count, count], dim=1)
        return query, key, value


def make_step(num_kv_heads: int, head_dim: int, half: int, num_slots: int) -> Step:
    angle = 100 * torch.rand(T, half)
    slots = torch.randperm(num_slots)[:T]
    slots[2] = -1  # a row of padding
    fused = torch.randn(T, (GROUP + 2) * num_kv_heads, head_dim)
    weights = torch.randn(2, head_dim)
    return Step(fused, angle.cos(), angle.sin(), slots, (weights[0], weights[1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "half", "block_size"),
    [(1, 64, 32, 8), (2, 80, 40, 16), (3, 96, 48, 128), (2, 128, 64, 16), (1, 256, 64, 32)],
)
def test_every_head_dim_and_dtype_matches_float64(
    device: torch.device,
    assert_close: AssertClose,
    num_kv_heads: int,
    head_dim: int,
    half: int,
    block_size: int,
    has_norm: bool,
    dtype: torch.dtype,
) -> None:
    step = make_step(num_kv_heads, head_dim, half, 5 * block_size)
    rounded = step.fused.to(dtype)
    pool = torch.full((5, 3, 2, num_kv_heads, block_size, head_dim), 7.0, dtype=dtype)
    wanted_pool = pool.double()
    weights = tuple(norm.to(dtype) for norm in step.norms)
    wide = (weights[0].double(), weights[1].double()) if has_norm else None
    wanted = reference.rotary_store_kv(
        *step.heads(rounded.double()), step.cos, step.sin, wanted_pool[:, 1], step.slots, wide, EPS
    )
    fused, actual_pool = rounded.clone().to(device), pool.clone().to(device)
    norms = (weights[0].to(device), weights[1].to(device)) if has_norm else None
    query = rotary_store_kv(
        *step.heads(fused), step.cos.to(device), step.sin.to(device), actual_pool[:, 1],
        step.slots.to(device), norms, EPS,
    )  # fmt: skip
    assert_close(query, wanted, times=2)
    assert_close(actual_pool, wanted_pool, times=2)
    # Exact where nothing is computed: values, rows of padding, other layers, other slots.
    assert torch.equal(actual_pool[:, 1, 1].cpu().double(), wanted_pool[:, 1, 1])
    assert torch.equal(actual_pool[:, ::2].cpu(), pool[:, ::2])
    if not has_norm:
        assert torch.equal(query[..., 2 * half :].cpu().double(), wanted[..., 2 * half :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_fp8_cache_gets_the_rounded_numbers_and_never_infinity(
    device: torch.device, dtype: torch.dtype
) -> None:
    step = make_step(2, 64, 32, 40)
    fused = (100 * step.fused).to(dtype)
    fused[0] *= 100  # far beyond what fp8 holds
    wanted = torch.zeros(5, 1, 2, 2, 8, 64).to(FP8)
    actual = wanted.clone().to(device)
    reference.rotary_store_kv(
        *step.heads(fused.clone()), step.cos, step.sin, wanted[:, 0], step.slots
    )
    heads = step.heads(fused.clone().to(device))
    angles = (step.cos.to(device), step.sin.to(device))
    rotary_store_kv(*heads, *angles, actual[:, 0], step.slots.to(device))
    assert wanted.float().abs().max() == 448 and actual.float().isfinite().all()
    # A rotated number may lie a rounding from the border between two of fp8's; of bfloat16's, which
    # the interpreter cuts off, more do.
    differs = actual.cpu().view(torch.uint8) != wanted.view(torch.uint8)
    assert differs.float().mean() < (1e-2 if dtype == torch.bfloat16 else 1e-3)
    assert not differs[:, :, 1].any()


def test_no_tokens_write_nothing(device: torch.device) -> None:
    pool = torch.zeros(2, 1, 2, 1, 8, 64, device=device)
    empty = torch.zeros(0, 1, 64, device=device)
    angles = torch.zeros(0, 32, device=device)
    slots = torch.zeros(0, dtype=torch.int64, device=device)
    assert rotary_store_kv(empty, empty, empty, angles, angles, pool[:, 0], slots).shape[0] == 0
    assert not pool.any()
