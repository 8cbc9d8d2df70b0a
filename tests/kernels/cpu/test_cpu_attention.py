"""CPU attention against the float32 reference, on pools whose unused slots hold NaN."""

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.cpu import ops
from octavo.kernels.cpu.team import HelperCore, Team
from paged_kv import paged, queries

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
DTYPES = list(TOLERANCE)
HEAD_DIMS = [64, 80, 96, 128, 256, 8]
# num_heads, num_kv_heads, block_size, sliding_window
SHAPES = [(9, 3, 16, 0), (8, 1, 8, 0), (4, 4, 128, 5), (14, 2, 32, 70), (5, 1, 24, 33)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_decode_attention_agrees_with_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(head_dim)
    for num_heads, num_kv_heads, block_size, window in SHAPES:
        query = queries(6, num_heads, head_dim, dtype)
        kv = paged([1, 16, 17, 150, 256, 300], num_kv_heads, block_size, query)
        scale = head_dim**-0.5
        got = ops.decode_attention(query, kv.kv_layer, kv.block_tables, kv.seq_lens, scale, window)
        expected = reference.decode_attention(
            query.float(), kv.kv_layer.float(), kv.block_tables, kv.seq_lens, scale, window
        )
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(got.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_heads_may_share_a_kv_head(group: int) -> None:
    query = queries(2, 2 * group, 64, torch.float32)
    kv = paged([40, 7], 2, 16, query)
    arguments = (query, kv.kv_layer, kv.block_tables, kv.seq_lens, 0.125)
    torch.testing.assert_close(
        ops.decode_attention(*arguments),
        reference.decode_attention(*arguments),
        atol=3e-6,
        rtol=3e-6,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_prefill_attention_agrees_with_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(head_dim)
    rows = [1, 150, 7, 0, 33, 64]
    query_start = torch.tensor([0, *rows]).cumsum(0).int()
    for num_heads, num_kv_heads, block_size, window in SHAPES:
        query = queries(sum(rows), num_heads, head_dim, dtype)
        kv = paged([130, 150, 80, 9, 33, 64], num_kv_heads, block_size, query)
        scale = head_dim**-0.5
        tables, lengths = kv.block_tables, kv.seq_lens
        got = ops.prefill_attention(query, kv.kv_layer, tables, lengths, query_start, scale, window)
        expected = reference.prefill_attention(
            query.float(), kv.kv_layer.float(), tables, lengths, query_start, scale, window
        )
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(got.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_decodes_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    query = queries(5, 9, 64, dtype)
    kv = paged([33, 290, 5, 256, 100], 3, 16, query)
    together = ops.decode_attention(query, kv.kv_layer, kv.block_tables, kv.seq_lens, 0.125, 40)
    for i in range(5):
        one = slice(i, i + 1)
        alone = ops.decode_attention(
            query[one], kv.kv_layer, kv.block_tables[one], kv.seq_lens[one], 0.125, 40
        )
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 50])
def test_a_prompt_gives_the_same_bits_however_it_is_cut(window: int, dtype: torch.dtype) -> None:
    query = queries(200, 6, 64, dtype)
    kv = paged([200], 2, 16, query)

    def attend(start: int, end: int) -> torch.Tensor:
        return ops.prefill_attention(
            query[start:end],
            kv.kv_layer,
            kv.block_tables,
            torch.tensor([end], dtype=torch.int32),
            torch.tensor([0, end - start], dtype=torch.int32),
            0.125,
            window,
        )

    whole = attend(0, 200)
    for cut in (1, 16, 63, 64, 65, 130, 199):
        assert torch.equal(torch.cat([attend(0, cut), attend(cut, 200)]), whole)


@pytest.mark.parametrize("num_rows", [3, 9])
def test_a_team_of_threads_gives_the_bits_of_one(num_rows: int) -> None:
    query = queries(num_rows * 100, 6, 64, torch.float32)
    kv = paged([300 + i for i in range(num_rows)], 2, 16, query)
    tables, lengths = kv.block_tables, kv.seq_lens
    starts = torch.arange(0, num_rows * 100 + 1, 100, dtype=torch.int32)

    def attend() -> tuple[torch.Tensor, torch.Tensor]:
        decoded = ops.decode_attention(query[:num_rows], kv.kv_layer, tables, lengths, 0.125)
        return decoded, ops.prefill_attention(query, kv.kv_layer, tables, lengths, starts, 0.125)

    alone = attend()
    team = Team([HelperCore()])
    try:
        with team.at_work():
            together = attend()
    finally:
        team.close()
    assert torch.equal(alone[0], together[0]) and torch.equal(alone[1], together[1])


def test_large_scores_neither_overflow_nor_lose_the_winner() -> None:
    query = queries(1, 2, 64, torch.float32) * 1000
    kv = paged([70], 1, 16, query)
    arguments = (query, kv.kv_layer, kv.block_tables, kv.seq_lens, 1.0)
    torch.testing.assert_close(
        ops.decode_attention(*arguments), reference.decode_attention(*arguments)
    )


def test_a_pool_past_two_to_the_31_elements_is_read_and_written_in_place() -> None:
    # 70,000 blocks of 32,768 elements: only the pages of the few blocks in use become real.
    pool = torch.empty(70_000, 4, 2, 4, 16, 64, dtype=torch.bfloat16)
    assert pool.numel() > 2**31
    layer = pool[:, 3]
    tables = torch.tensor([[69_999, 0, 65_537]], dtype=torch.int32)
    slots = torch.tensor([int(tables[0, i // 16]) * 16 + i % 16 for i in range(40)])
    key = torch.randn(40, 4, 64).bfloat16()
    value = torch.randn(40, 4, 64).bfloat16()
    ops.store_kv(key, value, layer, slots)
    assert torch.equal(layer[69_999, 0, :, 5], key[5])
    assert torch.equal(layer[65_537, 1, :, 7], value[39])
    query, lengths = queries(1, 8, 64, torch.bfloat16), torch.tensor([40], dtype=torch.int32)
    start = torch.tensor([0, 1], dtype=torch.int32)
    expected = reference.decode_attention(query, layer, tables, lengths, 0.125)
    for got in (
        ops.decode_attention(query, layer, tables, lengths, 0.125),
        ops.prefill_attention(query, layer, tables, lengths, start, 0.125),
    ):
        torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)
