"""Triton decode attention against the float64 reference."""

from collections.abc import Callable

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu.decode_attention import (
    MAX_SPLIT_TOKENS,
    MAX_SPLITS,
    MIN_SPLIT_TOKENS,
    choose_num_splits,
    decode_attention,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PagedKV = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
AssertClose = Callable[[torch.Tensor, torch.Tensor], None]


def expected(
    query: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sliding_window: int = 0,
) -> torch.Tensor:
    kv_layer, block_tables, seq_lens = (tensor.cpu() for tensor in kv)
    query = query.cpu().double()
    scale = query.shape[-1] ** -0.5
    return reference.decode_attention(
        query, kv_layer.double(), block_tables, seq_lens, scale, sliding_window
    )


def random_query(
    num_seqs: int, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A slice of a wider projection, so that its strides are not those of its shape."""
    fused = torch.randn(num_seqs, num_heads + 2, head_dim).to(device, dtype)
    return fused[:, :num_heads]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_and_dtype_matches_float64(
    paged_kv: PagedKV,
    assert_close: AssertClose,
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    kv = paged_kv([1, 17, 291], head_dim=head_dim, dtype=dtype)
    query = random_query(3, 6, head_dim, dtype, device)
    assert_close(decode_attention(query, *kv, head_dim**-0.5), expected(query, kv))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 20])
def test_every_group_size_matches_float64(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device, group: int
) -> None:
    kv = paged_kv([33, 70])
    query = random_query(2, 2 * group, 64, torch.float32, device)
    assert_close(decode_attention(query, *kv, 0.125), expected(query, kv))


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_every_block_size_matches_float64(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device, block_size: int
) -> None:
    kv = paged_kv([block_size - 1, block_size, block_size + 1, 131], block_size=block_size)
    query = random_query(4, 4, 64, torch.float32, device)
    assert_close(decode_attention(query, *kv, 0.125), expected(query, kv))


@pytest.mark.parametrize("sliding_window", [1, 16, 50, 130, 1000])
def test_sliding_window_hides_older_tokens(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device, sliding_window: int
) -> None:
    kv = paged_kv([5, 64, 301])
    query = random_query(3, 4, 64, torch.float32, device)
    actual = decode_attention(query, *kv, 0.125, sliding_window)
    assert_close(actual, expected(query, kv, sliding_window))


def test_a_long_sequence_is_split_and_merged(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device
) -> None:
    kv = paged_kv([2101], num_kv_heads=1)
    assert choose_num_splits(1, kv[1].shape[1] * 16, num_cores=4) == 16  # the interpreter's
    query = random_query(1, 3, 64, torch.float32, device)
    assert_close(decode_attention(query, *kv, 0.125), expected(query, kv))


def test_where_blocks_lie_changes_no_bit(paged_kv: PagedKV, device: torch.device) -> None:
    kv_layer, block_tables, seq_lens = paged_kv([40, 300], dtype=torch.float16)
    query = random_query(2, 4, 64, torch.float16, device)
    order = torch.randperm(kv_layer.shape[0], device=device)
    moved = kv_layer[order]  # block order[i] stands at i now
    moved_tables = order.argsort()[block_tables.long()].int()
    first = decode_attention(query, kv_layer, block_tables, seq_lens, 0.125)
    assert torch.equal(first, decode_attention(query, moved, moved_tables, seq_lens, 0.125))


def test_large_scores_do_not_overflow(
    paged_kv: PagedKV, assert_close: AssertClose, device: torch.device
) -> None:
    kv = paged_kv([290])
    query = 300 * random_query(1, 4, 64, torch.float32, device)
    assert_close(decode_attention(query, *kv, 1.0), expected(query * 8, kv))


@pytest.mark.parametrize("width", [1, 24])
def test_an_empty_sequence_gives_zero(paged_kv: PagedKV, device: torch.device, width: int) -> None:
    kv_layer, _, _ = paged_kv([16])
    block_tables = torch.zeros((2, width), dtype=torch.int32, device=device)
    seq_lens = torch.zeros(2, dtype=torch.int32, device=device)
    query = random_query(2, 4, 64, torch.float32, device)
    actual = decode_attention(query, kv_layer, block_tables, seq_lens, 0.125)
    assert torch.equal(actual, torch.zeros_like(actual))


def test_an_empty_batch_gives_an_empty_result(paged_kv: PagedKV, device: torch.device) -> None:
    kv_layer, block_tables, seq_lens = paged_kv([16])
    query = random_query(0, 4, 64, torch.float32, device)
    actual = decode_attention(query, kv_layer, block_tables[:0], seq_lens[:0], 0.125)
    assert actual.shape == (0, 4, 64)


def test_splits_fill_the_device_and_stay_within_their_bounds() -> None:
    assert choose_num_splits(512 * 8, 1000, num_cores=132) == 1
    assert choose_num_splits(1, MIN_SPLIT_TOKENS - 1, num_cores=132) == 1
    assert choose_num_splits(8, 131_072, num_cores=132) == 66  # one wave of 528 programs
    assert choose_num_splits(512 * 8, 8 * MAX_SPLIT_TOKENS, num_cores=132) == 8
    assert choose_num_splits(1, 10_000_000, num_cores=132) == MAX_SPLITS
