"""Triton store_kv against the reference: every bit of the pool."""

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu.store_kv import store_kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "block_size"),
    [(1, 64, 8), (2, 80, 16), (3, 96, 128), (8, 128, 16), (5, 256, 32)],
)
def test_writes_the_slots_of_its_layer_and_nothing_else(
    device: torch.device, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    fused = torch.randn(7, 3 * num_kv_heads, head_dim).to(device, dtype)
    key, value = fused[:, num_kv_heads : 2 * num_kv_heads], fused[:, 2 * num_kv_heads :]
    slots = torch.randperm(5 * block_size)[:7]
    slots[2] = -1  # a row of padding
    slots[3] = 5 * block_size - 1 if 5 * block_size - 1 not in slots else slots[3]
    shape = (5, 3, 2, num_kv_heads, block_size, head_dim)
    pool = torch.full(shape, 7.0, dtype=dtype, device=device)
    wanted = pool.cpu().clone()
    store_kv(key, value, pool[:, 1], slots.to(device))
    reference.store_kv(key.cpu(), value.cpu(), wanted[:, 1], slots)
    assert torch.equal(pool.cpu(), wanted)


def test_no_tokens_write_nothing(device: torch.device) -> None:
    pool = torch.zeros(2, 1, 2, 1, 8, 64, device=device)
    key = torch.zeros(0, 1, 64, device=device)
    store_kv(key, key, pool[:, 0], torch.zeros(0, dtype=torch.int64, device=device))
    assert not pool.any()
