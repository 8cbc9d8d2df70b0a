"""Triton grouped decode attention against plain attention in float64."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu.shared_attention import grouped_decode_attention
from shared_tables import SharedKV, make_shared

AssertClose = Callable[[torch.Tensor, torch.Tensor], None]
ROWS = [("ab", 5), ("ab", 40), ("a", 1), ("", 9), ("d", 300), ("d", 17)]
PARTS = {"a": 3, "b": 5, "d": 21}


def both(
    kv: SharedKV, num_heads: int, device: torch.device, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(actual, expected)."""
    num_seqs, head_dim = len(kv.seq_lens), kv.kv_layer.shape[-1]
    fused = factor * torch.randn(num_seqs, num_heads + 2, head_dim)
    query = fused.to(device, kv.kv_layer.dtype)[:, :num_heads]
    scale = head_dim**-0.5
    actual = grouped_decode_attention(
        query, kv.kv_layer, kv.block_tables, kv.seq_lens, kv.groups, scale
    )
    tables, seq_lens = kv.block_tables.cpu(), kv.seq_lens.cpu()
    expected = reference.decode_attention(
        query.cpu().double(), kv.kv_layer.cpu().double(), tables, seq_lens, scale
    )
    return actual, expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_nested_and_parallel_groups_match_float64(
    device: torch.device, assert_close: AssertClose, head_dim: int, dtype: torch.dtype
) -> None:
    kv = make_shared(ROWS, PARTS, head_dim=head_dim, dtype=dtype, device=device)
    assert_close(*both(kv, 4, device))


@pytest.mark.parametrize("block_size", [8, 32, 128])
def test_every_block_size_matches_float64(
    device: torch.device, assert_close: AssertClose, block_size: int
) -> None:
    kv = make_shared(ROWS, {"a": 3, "b": 1, "d": 2}, block_size=block_size, device=device)
    assert_close(*both(kv, 4, device))


@pytest.mark.parametrize(
    ("num_members", "group"), [(2, 1), (2, 3), (2, 7), (2, 20), (19, 1), (19, 7)]
)
def test_every_number_of_rows_matches_float64(
    device: torch.device, assert_close: AssertClose, group: int, num_members: int
) -> None:
    """19 members of 7 heads fill several tiles of rows, the last one in part."""
    rows = [("a", 1 + 2 * i) for i in range(num_members)]
    kv = make_shared(rows, {"a": 9}, num_kv_heads=1, device=device)
    assert_close(*both(kv, group, device))


def test_a_long_prefix_is_split_and_merged(device: torch.device, assert_close: AssertClose) -> None:
    kv = make_shared([("a", 30), ("a", 400)], {"a": 60}, num_kv_heads=1, device=device)
    assert_close(*both(kv, 2, device))


def test_large_scores_do_not_overflow(device: torch.device, assert_close: AssertClose) -> None:
    kv = make_shared([("a", 30), ("a", 40)], {"a": 9}, device=device)
    assert_close(*both(kv, 4, device, factor=300.0))
