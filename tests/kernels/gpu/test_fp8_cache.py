"""Triton attention over a cache in fp8 against the float64 reference over the same numbers."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu import ops
from octavo.kernels.gpu.kv_tile import FP8
from shared_tables import make_shared

PagedKV = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
AssertClose = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (80, 128), (128, 8)])
def test_decode_reads_an_fp8_cache(
    paged_kv: PagedKV,
    assert_close: AssertClose,
    device: torch.device,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    kv = paged_kv([1, 17, 160], head_dim=head_dim, block_size=block_size, dtype=FP8)
    query = torch.randn(3, 6, head_dim).to(device, dtype)
    expected = reference.decode_attention(
        query.cpu().double(), kv[0].cpu().double(), kv[1].cpu(), kv[2].cpu(), 0.1
    )
    assert_close(ops.decode_attention(query, *kv, 0.1), expected)


def test_prefill_reads_an_fp8_cache(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device
) -> None:
    kv = paged_kv([40, 65], dtype=FP8)
    query = torch.randn(60, 4, 64).to(device, torch.bfloat16)
    query_start = torch.tensor([0, 40, 60], dtype=torch.int32)
    expected = reference.prefill_attention(
        query.cpu().double(), kv[0].cpu().double(), kv[1].cpu(), kv[2].cpu(), query_start, 0.125
    )
    assert_close(ops.prefill_attention(query, *kv, query_start.to(device), 0.125), expected)


def test_groups_read_an_fp8_cache(assert_close: AssertClose, device: torch.device) -> None:
    kv = make_shared([("a", 30), ("a", 40), ("", 9)], {"a": 9}, dtype=FP8, device=device)
    query = torch.randn(3, 4, 64).to(device, torch.bfloat16)
    expected = reference.decode_attention(
        query.cpu().double(), kv.kv_layer.cpu().double(), kv.block_tables.cpu(),
        kv.seq_lens.cpu(), 0.125,
    )  # fmt: skip
    actual = ops.grouped_decode_attention(
        query, kv.kv_layer, kv.block_tables, kv.seq_lens, kv.groups, 0.125
    )
    assert_close(actual, expected)
