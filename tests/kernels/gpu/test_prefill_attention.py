"""Triton prefill attention against the float64 reference."""

from collections.abc import Callable, Sequence

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu.prefill_attention import prefill_attention

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PagedKV = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
AssertClose = Callable[[torch.Tensor, torch.Tensor], None]


def both(
    kv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    num_rows: Sequence[int],
    group: int = 3,
    sliding_window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result and the reference's for chunks of num_rows new tokens."""
    kv_layer, block_tables, seq_lens = kv
    num_heads, head_dim = group * kv_layer.shape[2], kv_layer.shape[4]
    fused = torch.randn(sum(num_rows), num_heads + 2, head_dim)
    query = fused.to(kv_layer)[:, :num_heads]
    starts = [sum(num_rows[:i]) for i in range(len(num_rows) + 1)]
    query_start = torch.tensor(starts, dtype=torch.int32, device=kv_layer.device)
    scale = head_dim**-0.5
    actual = prefill_attention(
        query, kv_layer, block_tables, seq_lens, query_start, scale, sliding_window
    )
    expected = reference.prefill_attention(
        query.cpu().double(), kv_layer.cpu().double(), block_tables.cpu(), seq_lens.cpu(),
        query_start.cpu(), scale, sliding_window,
    )  # fmt: skip
    return actual, expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_and_dtype_matches_float64(
    paged_kv: PagedKV, assert_close: AssertClose, head_dim: int, dtype: torch.dtype
) -> None:
    kv = paged_kv([1, 37, 70], num_kv_heads=1, head_dim=head_dim, dtype=dtype)
    assert_close(*both(kv, [1, 5, 21]))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 20, 40])
def test_every_group_size_matches_float64(
    paged_kv: PagedKV, assert_close: AssertClose, group: int
) -> None:
    kv = paged_kv([35, 9], num_kv_heads=2)
    assert_close(*both(kv, [11, 9], group=group))


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_every_block_size_matches_float64(
    paged_kv: PagedKV, assert_close: AssertClose, block_size: int
) -> None:
    kv = paged_kv([131, block_size + 1], num_kv_heads=1, block_size=block_size)
    assert_close(*both(kv, [7, block_size + 1 if block_size < 64 else 3]))


@pytest.mark.parametrize("sliding_window", [1, 16, 50, 1000])
def test_sliding_window_hides_older_tokens(
    paged_kv: PagedKV, assert_close: AssertClose, sliding_window: int
) -> None:
    kv = paged_kv([5, 130], num_kv_heads=1)
    assert_close(*both(kv, [5, 40], sliding_window=sliding_window))


def test_chunks_of_any_length_share_a_flat_batch(
    paged_kv: PagedKV, assert_close: AssertClose
) -> None:
    num_rows = [0, 1, 10, 0, 0, 33, 2, 0]
    kv = paged_kv([8, 1, 64, 3, 5, 33, 97, 1], num_kv_heads=1, dtype=torch.float16)
    assert_close(*both(kv, num_rows))


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65])
def test_lengths_at_tile_borders_match_float64(
    paged_kv: PagedKV, assert_close: AssertClose, length: int
) -> None:
    kv = paged_kv([length], num_kv_heads=1)
    assert_close(*both(kv, [length], group=1))


def test_no_row_sees_its_future(paged_kv: PagedKV, device: torch.device) -> None:
    kv_layer, block_tables, seq_lens = paged_kv([64], num_kv_heads=1)
    query = torch.randn(64, 2, 64).to(device)
    query_start = torch.tensor([0, 64], dtype=torch.int32, device=device)
    before = prefill_attention(query, kv_layer, block_tables, seq_lens, query_start, 0.125)
    kv_layer[int(block_tables[0, 3])] = 9.0  # positions 48..63
    after = prefill_attention(query, kv_layer, block_tables, seq_lens, query_start, 0.125)
    assert torch.equal(before[:48], after[:48])
    assert not torch.isclose(before[48:], after[48:]).all(dim=-1).any()


def test_no_rows_give_an_empty_result(paged_kv: PagedKV, device: torch.device) -> None:
    actual, _ = both(paged_kv([16]), [0])
    assert actual.shape == (0, 6, 64)
