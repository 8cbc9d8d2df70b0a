"""Attention by 16-bit integers on what scaled integers could spoil, against float64."""

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.cpu.integer_dot import HAS_INTEGERS
from octavo.kernels.cpu.prefill_columns import attend_prompts
from octavo.kernels.cpu.short_kind import INTEGERS
from paged_kv import Paged, paged, queries

pytestmark = pytest.mark.skipif(not HAS_INTEGERS, reason="needs AVX2 without AVX-512")
BLOCK = 16
KEYS, VALUES = 0, 1


def slots(kv: Paged, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and offsets of tokens first .. end - 1 of the only sequence."""
    tokens = torch.arange(first, end)
    return kv.block_tables[0, tokens // BLOCK].long(), tokens % BLOCK


def fill(kv: Paged, which: int, first: int, rows: torch.Tensor) -> None:
    """Rows [tokens, num_kv_heads, head_dim] in place of K or V from token `first` on."""
    blocks, offsets = slots(kv, first, first + len(rows))
    kv.kv_layer[blocks, which, :, offsets] = rows.to(kv.kv_layer.dtype)


def widen_channel(kv: Paged, which: int, channel: int, factor: float) -> None:
    kv.kv_layer[:, which, :, :, channel] *= factor


def attend(query: torch.Tensor, kv: Paged) -> tuple[torch.Tensor, torch.Tensor]:
    """(by integers, in float64) of a prompt that is the whole sequence, or its end."""
    starts = torch.tensor([0, len(query)], dtype=torch.int32)
    call = (kv.block_tables, kv.seq_lens, starts, query.shape[2] ** -0.5)
    expected = reference.prefill_attention(query.double(), kv.kv_layer.double(), *call)
    return attend_prompts(INTEGERS, query, kv.kv_layer, *call).double(), expected


def assert_rounds_only(got: torch.Tensor, expected: torch.Tensor, factor: float = 1.3) -> None:
    """The mean square error is about that of rounding the exact result."""
    rounding = expected.bfloat16().double() - expected
    assert (got - expected).square().mean() < factor * rounding.square().mean()


@pytest.mark.parametrize("num_heads", [1, 6])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_errors_are_those_of_rounding_the_output(head_dim: int, num_heads: int) -> None:
    torch.manual_seed(head_dim)
    query = queries(500, num_heads, head_dim, torch.bfloat16)
    assert_rounds_only(*attend(query, paged([500], 1, BLOCK, query)))


@pytest.mark.parametrize("which", [KEYS, VALUES])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_channel_thirty_times_as_large_costs_the_others_nothing(
    head_dim: int, which: int
) -> None:
    torch.manual_seed(head_dim)
    query = queries(500, 6, head_dim, torch.bfloat16)
    kv = paged([500], 2, BLOCK, query)
    widen_channel(kv, which, 5, 30.0)
    if which == KEYS:  # or one token would draw all weight
        query[..., 5] /= 30
    got, expected = attend(query, kv)
    kept = torch.arange(head_dim) != 5
    assert_rounds_only(got[..., kept], expected[..., kept], factor=1.6)
    assert_rounds_only(got[..., 5], expected[..., 5])


def test_tokens_of_unlike_size_keep_their_own_precision() -> None:
    query = queries(300, 4, 64, torch.bfloat16)
    kv = paged([300], 1, BLOCK, query)
    sizes = torch.logspace(-3, 1, 300)[torch.randperm(300)].view(-1, 1, 1)
    fill(kv, KEYS, 0, sizes * torch.randn(300, 1, 64))
    fill(kv, VALUES, 0, sizes.flip(0) * torch.randn(300, 1, 64))
    assert_rounds_only(*attend(query, kv), factor=1.6)


def test_a_first_token_that_draws_the_weight_to_a_tiny_value_leaves_the_others_precise() -> None:
    query = queries(64, 1, 64, torch.bfloat16)
    kv = paged([64], 1, BLOCK, query)
    direction = torch.ones(1, 1, 64)
    query += direction[0].bfloat16()  # towards the first key
    fill(kv, KEYS, 0, 1.4 * direction)  # 11 nats above the others
    fill(kv, VALUES, 0, 1e-5 * direction)
    got, expected = attend(query[32:], kv)
    assert expected.abs().max() < 0.1  # most weight is on nothing
    assert_rounds_only(got, expected, factor=1.6)


@pytest.mark.parametrize("head_dim", [8, 64, 256])
def test_sums_at_their_bounds_do_not_overflow(head_dim: int) -> None:
    query = torch.zeros(128, 1, head_dim, dtype=torch.bfloat16)
    kv = paged([128], 1, BLOCK, query)
    one_large = torch.zeros(128, 1, head_dim)
    one_large[..., 3] = torch.linspace(-1, 1, 128).sign().view(-1, 1)
    flat = torch.full((128, 1, head_dim), 3.0)
    for keys, values, own in ((flat, one_large, 0.0), (one_large, one_large.abs(), 4.0)):
        fill(kv, KEYS, 0, keys)
        fill(kv, VALUES, 0, values)
        for rows in (own * one_large, own * flat, 0.01 * flat):  # the last: all scores are equal
            got, expected = attend(rows.bfloat16(), kv)
            torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)


def test_rows_of_zeros_see_and_are_seen() -> None:
    query = queries(80, 2, 64, torch.bfloat16)
    kv = paged([80], 1, BLOCK, query)
    query[::3] = 0
    fill(kv, KEYS, 10, torch.zeros(9, 1, 64))
    fill(kv, VALUES, 15, torch.zeros(9, 1, 64))
    got, expected = attend(query, kv)
    torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("which", [KEYS, VALUES])
def test_nan_reaches_every_row_that_sees_it_and_no_tile_before(which: int) -> None:
    query = queries(200, 2, 64, torch.bfloat16)
    kv = paged([200], 1, BLOCK, query)
    fill(kv, which, 150, torch.full((1, 1, 64), float("nan")))
    got, _ = attend(query, kv)
    assert got[150:].isnan().all() and got[:128].isfinite().all()


def test_nan_in_a_query_stays_in_its_row() -> None:
    query = queries(90, 2, 64, torch.bfloat16)
    kv = paged([90], 1, BLOCK, query)
    clean, _ = attend(query, kv)
    query[40, 1, 7] = float("nan")
    got, _ = attend(query, kv)
    assert got[40, 1].isnan().all()
    got[40, 1] = clean[40, 1]
    assert torch.equal(got, clean)
