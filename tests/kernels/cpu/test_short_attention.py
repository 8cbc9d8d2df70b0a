"""Prefill attention in 16 bits by each kind of instructions the CPU has, against float64."""

import numpy as np
import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.cpu import amx
from octavo.kernels.cpu.integer_dot import HAS_INTEGERS
from octavo.kernels.cpu.pair_dot import HAS_PAIRS
from octavo.kernels.cpu.prefill_columns import attend_prompts
from octavo.kernels.cpu.short_kind import INTEGERS, PAIRS, TILES
from octavo.kernels.cpu.team import HelperCore, Team
from paged_kv import paged, queries

# num_heads, num_kv_heads, block_size, sliding_window
SHAPES = [(9, 3, 16, 0), (8, 1, 8, 0), (4, 4, 128, 5), (14, 2, 32, 70), (5, 1, 24, 33)]
KINDS = [
    pytest.param(
        TILES,
        id="tiles",
        marks=pytest.mark.skipif(
            not (amx.HAS_AMX_BF16 and HAS_PAIRS), reason="the CPU has no bfloat16 tiles"
        ),
    ),
    pytest.param(
        PAIRS,
        id="pairs",
        marks=pytest.mark.skipif(not HAS_PAIRS, reason="the CPU has no bfloat16 pairs"),
    ),
    pytest.param(
        INTEGERS,
        id="integers",
        marks=pytest.mark.skipif(not HAS_INTEGERS, reason="the CPU has no pairs of integers"),
    ),
]
each_kind = pytest.mark.parametrize("kind", KINDS)
# Outputs are averages of numbers around 1, rounded to bfloat16, as weights are.
TOLERANCE = 1e-2


@each_kind
@pytest.mark.parametrize("head_dim", [8, 32, 40, 64, 80, 96, 128, 160, 256])
def test_prompts_agree_with_float64(kind: np.generic, head_dim: int) -> None:
    torch.manual_seed(head_dim)
    rows = [1, 150, 7, 0, 33, 64, 200]
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    for num_heads, num_kv_heads, block_size, window in SHAPES:
        query = queries(sum(rows), num_heads, head_dim, torch.bfloat16)
        kv = paged([130, 150, 80, 9, 33, 64, 470], num_kv_heads, block_size, query)
        call = (kv.block_tables, kv.seq_lens, starts, head_dim**-0.5, window)
        got = attend_prompts(kind, query, kv.kv_layer, *call)
        expected = reference.prefill_attention(query.double(), kv.kv_layer.double(), *call)
        torch.testing.assert_close(got.double(), expected, atol=TOLERANCE, rtol=TOLERANCE)


@each_kind
def test_errors_are_those_of_rounding(kind: np.generic) -> None:
    query = queries(700, 6, 64, torch.bfloat16)
    kv = paged([700], 2, 16, query)
    starts = torch.tensor([0, 700], dtype=torch.int32)
    call = (kv.block_tables, kv.seq_lens, starts, 0.125)
    expected = reference.prefill_attention(query.double(), kv.kv_layer.double(), *call)
    error = attend_prompts(kind, query, kv.kv_layer, *call).double() - expected
    rounding = expected.bfloat16().double() - expected
    assert error.square().mean() < 3 * rounding.square().mean()


@each_kind
@pytest.mark.parametrize("head_dim", [64, 96])
@pytest.mark.parametrize("window", [0, 50, 129])
def test_a_prompt_gives_the_same_bits_however_it_is_cut(
    kind: np.generic, window: int, head_dim: int
) -> None:
    torch.manual_seed(window)
    query = 3 * queries(400, 6, head_dim, torch.bfloat16)  # some maxima grow late
    kv = paged([400], 2, 16, query)

    def attend(start: int, end: int, span_rows: int = 96) -> torch.Tensor:
        lengths = torch.tensor([end], dtype=torch.int32)
        starts = torch.tensor([0, end - start], dtype=torch.int32)
        call = (kv.block_tables, lengths, starts, 0.125, window, span_rows)
        return attend_prompts(kind, query[start:end], kv.kv_layer, *call)

    whole = attend(0, 400)
    assert torch.equal(attend(0, 400, 768), whole)
    for cut in (1, 7, 16, 31, 32, 33, 63, 64, 65, 130, 200, 399):
        assert torch.equal(torch.cat([attend(0, cut), attend(cut, 400)]), whole)
    singles = [attend(i, i + 1) for i in range(0, 400, 13)]
    assert torch.equal(torch.cat(singles), whole[::13])


@each_kind
def test_a_sequence_attends_the_same_alone_and_in_any_batch(kind: np.generic) -> None:
    rows = [3, 100, 40]
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    query = queries(sum(rows), 9, 64, torch.bfloat16)
    kv = paged([80, 100, 300], 3, 16, query)
    together = attend_prompts(kind, query, kv.kv_layer, kv.block_tables, kv.seq_lens, starts, 0.125)
    for i, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        own = torch.tensor([0, end - begin], dtype=torch.int32)
        one = slice(i, i + 1)
        call = (kv.block_tables[one], kv.seq_lens[one], own, 0.125)
        alone = attend_prompts(kind, query[begin:end], kv.kv_layer, *call)
        assert torch.equal(alone, together[begin:end])


@each_kind
def test_a_team_gives_the_bits_of_one(kind: np.generic) -> None:
    query = queries(600, 6, 64, torch.bfloat16)
    kv = paged([600], 2, 16, query)
    starts = torch.tensor([0, 600], dtype=torch.int32)
    call = (kind, query, kv.kv_layer, kv.block_tables, kv.seq_lens, starts, 0.125)
    alone = attend_prompts(*call)
    team = Team([HelperCore()])
    try:
        with team.at_work():
            together = attend_prompts(*call)
    finally:
        team.close()
    assert torch.equal(alone, together)


@each_kind
def test_large_scores_neither_overflow_nor_lose_the_winner(kind: np.generic) -> None:
    query = queries(70, 2, 64, torch.bfloat16) * 1000
    kv = paged([70], 1, 16, query)
    starts = torch.tensor([0, 70], dtype=torch.int32)
    call = (kv.block_tables, kv.seq_lens, starts, 1.0)
    got = attend_prompts(kind, query, kv.kv_layer, *call)
    expected = reference.prefill_attention(query.double(), kv.kv_layer.double(), *call)
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE, rtol=TOLERANCE)
