"""Grouped decode attention against plain attention of the same tables, on the reference and CPU."""

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.cpu import amx, ops, shared
from octavo.kernels.cpu.integer_dot import HAS_INTEGERS
from octavo.kernels.cpu.team import HelperCore, Team
from shared_tables import SharedKV, make_shared

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
DTYPES = list(TOLERANCE)
# Nested three deep, two groups side by side, one that shares nothing.
ROWS = [("ab", 5), ("ab", 40), ("a", 1), ("", 9), ("abc", 290), ("abc", 16), ("d", 3), ("d", 17)]
PARTS = {"a": 3, "b": 5, "c": 1, "d": 21}


def queries(num_rows: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(num_rows, num_heads + 2, head_dim).to(dtype)[:, :num_heads]


def plain(query: torch.Tensor, kv: SharedKV) -> torch.Tensor:
    """float64 attention, sequence by sequence."""
    return reference.decode_attention(
        query.double(), kv.kv_layer.double(), kv.block_tables, kv.seq_lens, query.shape[2] ** -0.5
    )


def grouped(query: torch.Tensor, kv: SharedKV) -> torch.Tensor:
    return ops.grouped_decode_attention(
        query, kv.kv_layer, kv.block_tables, kv.seq_lens, kv.groups, query.shape[2] ** -0.5
    )


def test_the_reference_merges_parts_to_the_whole() -> None:
    kv = make_shared(ROWS, PARTS)
    assert len(kv.groups.levels) == 4 and kv.groups.num_levels == 3
    query = queries(len(ROWS), 6, 64, torch.float32)
    got = reference.grouped_decode_attention(
        query.double(), kv.kv_layer.double(), kv.block_tables, kv.seq_lens, kv.groups, 0.125
    )
    torch.testing.assert_close(got, plain(query, kv), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 8])
def test_grouped_attention_agrees_with_plain_attention(head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(head_dim)
    for num_heads, num_kv_heads, block_size in ((9, 3, 16), (8, 1, 8), (4, 4, 128), (14, 2, 32)):
        kv = make_shared(ROWS, PARTS, num_kv_heads, head_dim, block_size, dtype)
        query = queries(len(ROWS), num_heads, head_dim, dtype)
        tolerance = TOLERANCE[dtype]
        expected = plain(query, kv)
        torch.testing.assert_close(
            grouped(query, kv).double(), expected, atol=tolerance, rtol=tolerance
        )


@pytest.mark.parametrize("num_members", [2, 3, 7, 8, 9, 33])
def test_any_number_of_members_agrees(num_members: int) -> None:
    kv = make_shared([("a", 1 + i) for i in range(num_members)], {"a": 9})
    query = queries(num_members, 6, 64, torch.float32)
    torch.testing.assert_close(grouped(query, kv).double(), plain(query, kv), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_depends_on_where_its_groups_end_and_not_on_who_else_is_there(
    dtype: torch.dtype,
) -> None:
    kv = make_shared([("a", 5 + i) for i in range(20)], {"a": 20}, dtype=dtype)
    query = queries(20, 6, 64, dtype)
    together = grouped(query, kv)
    poisoned = query.clone()
    poisoned[2:] = float("nan")
    assert torch.equal(grouped(poisoned, kv)[:2], together[:2])
    pair = make_shared([("a", 5), ("a", 6)], {"a": 20}, dtype=dtype).groups
    alone = ops.grouped_decode_attention(
        query[:2], kv.kv_layer, kv.block_tables[:2], kv.seq_lens[:2], pair, 0.125
    )
    assert torch.equal(alone, together[:2])


def test_a_sequence_outside_all_groups_has_the_bits_of_plain_attention() -> None:
    kv = make_shared(ROWS, PARTS)
    query = queries(len(ROWS), 6, 64, torch.float32)
    expected = ops.decode_attention(query, kv.kv_layer, kv.block_tables, kv.seq_lens, 0.125)
    assert torch.equal(grouped(query, kv)[3], expected[3])


def test_large_scores_neither_overflow_nor_lose_the_winner() -> None:
    kv = make_shared([("a", 20), ("a", 70)], {"a": 12})
    query = queries(2, 4, 64, torch.float32) * 1000
    torch.testing.assert_close(grouped(query, kv).double(), plain(query, kv), atol=1e-4, rtol=1e-4)


needs_tiles = pytest.mark.skipif(not amx.HAS_AMX_BF16, reason="needs a CPU with AMX in bfloat16")


@needs_tiles
@pytest.mark.parametrize("head_dim", [64, 80])
def test_without_matrix_tiles_grouped_attention_agrees_too(
    head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = make_shared(ROWS, PARTS, 3, head_dim, dtype=torch.bfloat16)
    query = queries(len(ROWS), 9, head_dim, torch.bfloat16)
    by_tiles = grouped(query, kv)
    monkeypatch.setattr(amx, "HAS_AMX_BF16", False)
    by_pairs = grouped(query, kv)
    assert not torch.equal(by_pairs, by_tiles)  # another kernel
    torch.testing.assert_close(by_pairs.double(), plain(query, kv), atol=1e-2, rtol=1e-2)


@pytest.mark.skipif(
    not amx.HAS_AMX_BF16 and not HAS_INTEGERS, reason="elsewhere items are always as long"
)
def test_no_result_depends_on_how_rows_are_cut_into_items(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", 1 + i) for i in range(20)] + [("ab", 1 + i) for i in range(30)]
    kv = make_shared(rows, {"a": 9, "b": 5}, dtype=torch.bfloat16)
    query = queries(len(rows), 6, 64, torch.bfloat16)
    whole = grouped(query, kv)
    monkeypatch.setattr(shared, "ITEM_FLOP", (1, 1))
    assert torch.equal(grouped(query, kv), whole)
    torch.testing.assert_close(whole.double(), plain(query, kv), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_threads_give_the_same_bits(dtype: torch.dtype) -> None:
    rows = [("a", 1 + i) for i in range(40)] + [("ab", 1 + i) for i in range(60)]
    kv = make_shared(rows, {"a": 9, "b": 5}, dtype=dtype)
    query = queries(len(rows), 6, 64, dtype)
    alone = grouped(query, kv)
    team = Team([HelperCore()] * 2)
    with team.at_work():
        for _ in range(3):
            assert torch.equal(grouped(query, kv), alone)
    team.close()


@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_large_scores_in_bfloat16_keep_their_winner(factor: float) -> None:
    """Of the first tokens, of an inner group's and of a row's own."""
    kv = make_shared([("ab", 20), ("ab", 70), ("a", 300)], {"a": 12, "b": 9}, dtype=torch.bfloat16)
    query = queries(3, 4, 64, torch.bfloat16) * factor
    torch.testing.assert_close(grouped(query, kv).double(), plain(query, kv), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_outlying_channel_costs_the_others_nothing(dtype: torch.dtype) -> None:
    """Of K, thirty times the others' size; errors are about those of rounding the output."""
    torch.manual_seed(0)
    kv = make_shared([("a", 3 + i) for i in range(12)], {"a": 40}, 2, 64, dtype=dtype)
    query = queries(12, 6, 64, dtype)
    kv.kv_layer[:, 0, ..., 9] *= 30
    query[..., 9] /= 30
    expected = plain(query, kv)
    rounding = expected.to(dtype).double() - expected
    error = grouped(query, kv).double() - expected
    factor = 1.5 if dtype == torch.bfloat16 else 30  # float16 has three bits more
    assert error.square().mean() < factor * rounding.square().mean()
