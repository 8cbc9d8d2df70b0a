"""Prefill attention in 16 bits by one kind of short_kind.py: a query row is a lane.

    for each sequence, KV head and span of query rows (tokens x the heads that share the KV head)
      queries   transposed once, in chunks of a few vectors of 16 rows
      for each tile of tokens in sight
        pack    K and V as the products want them, once for the span    (short_tile.py)
        for each chunk: scores [tokens, rows], online softmax, outputs += V^T x weights

Scores, maxima and sums are float32; weights are rounded to bfloat16, or to integers, before they
meet V. Tiles stand at multiples of their size, wherever a chunk begins, and parts of 32 tokens out
of a chunk's sight are left out, which would add zeros: a row's result does not depend on how its
prompt was cut.
"""

import functools
from itertools import pairwise

import numpy as np
import torch

from octavo.kernels.cpu.column_softmax import NOTHING
from octavo.kernels.cpu.heads import LOG2_E, ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import (
    borrow,
    float_of,
    give_back,
    read_i32,
    unpacked,
    write_i32,
)
from octavo.kernels.cpu.paging import find_rows
from octavo.kernels.cpu.prompt_rows import SPAN_UNIT, chunk_vectors, load_queries, save_outputs
from octavo.kernels.cpu.short_kind import begin_products, end_products
from octavo.kernels.cpu.short_tile import fold, pack, places, tile_bytes
from octavo.kernels.cpu.sight import EVERYTHING, STEP, TILE
from octavo.kernels.cpu.spans import find_run
from octavo.kernels.cpu.team import Kernel, float_bits, mailbox, run
from octavo.kernels.cpu.tile_attention import CHUNK
from octavo.kernels.cpu.tile_rows import PAIR_WIDTH, gather_rows
from octavo.kernels.cpu.vector import FLOAT, format_of, splat, store

ITEM_FLOP = 5e8  # at most, about 1 ms by tiles; a core that is wanted back waits for an item
ITEMS = 8  # at least, for a team, where a span is long enough


@inlined
def _rows_in_sight(kind, positions, count, tile, reach):
    """(first, end, count) of the rows that may see something of the tile; first begins a chunk."""
    chunk = chunk_vectors(kind, 0, SPAN_UNIT) * LANES
    first = 0
    while read_i32(positions, min(first + chunk, count) - 1) < tile:
        first += chunk
    end = count
    while end > first and read_i32(positions, end - 1) - reach >= tile + TILE - 1:
        end -= 1
    return first, end, count


@functools.lru_cache(typed=True)  # kinds and formats are equal numbers of unequal types
def prefill_kernel(kind: np.generic, format: np.generic) -> Kernel:
    """The kernel for a format of 16 bits by one kind of short_kind.py."""

    def prefill(args, first_item, last_item):
        (
            query,  # [T, num_heads, head_dim]
            query_token,
            query_head,  # strides in bytes
            kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
            kv_block,
            kv_pair,
            kv_head,
            kv_token,  # strides in bytes
            block_tables,  # [S, max_blocks] int32
            table_stride,  # bytes
            seq_lens,  # [S] int32
            query_start,  # [S + 1] int32
            out,  # [T, num_heads, head_dim], contiguous
            num_heads,
            num_kv_heads,
            block_size,
            size,  # head_dim
            scale,  # of scores, times log2(e)
            window,  # sliding window; 0 for none
            span_rows,  # query rows of an item
        ) = unpacked(args, 20)
        scale = float_of(scale)
        reach = window if window > 0 else EVERYTHING
        group = num_heads // num_kv_heads
        width = (size + PAIR_WIDTH - 1) // PAIR_WIDTH * PAIR_WIDTH
        num_bytes = span_rows * (6 * width + 4 * 4) + tile_bytes(width)
        num_bytes += 4 * LANES * (width + 1) + 8 * (2 * LANES + TILE) + 64
        borrowed = borrow(num_bytes)
        queries = (borrowed + 63) // 64 * 64  # a chunk after the other: [width / 2, rows] of pairs
        outputs = queries + 2 * span_rows * width  # a chunk after the other: [width, rows]
        packed = places(outputs + 4 * span_rows * width, width)
        scratch = outputs + 4 * span_rows * width + tile_bytes(width)  # [16, width] float32
        positions = scratch + 4 * LANES * width  # [span_rows] int32
        highest = positions + 4 * span_rows  # [span_rows]
        factors = highest + 4 * span_rows  # [span_rows]; of integers, the rows' scales
        total = factors + 4 * span_rows  # [span_rows], and 16 more to read past the last
        addresses = total + 4 * (span_rows + LANES)  # [16] int64
        offsets = addresses + 8 * LANES  # [TILE + 16] int64
        keys, rows = packed[0], packed[5]
        state = (queries, outputs, positions, highest, total, factors)
        begin_products(kind)
        s, before = 0, 0  # the item's sequence, and items of those before it
        for item in range(first_item, last_item):
            s, before = find_run(item, s, before, query_start, group, num_kv_heads, span_rows)
            span, head = divmod(item - before, num_kv_heads)
            start = read_i32(query_start, s)
            num_rows = read_i32(query_start, s + 1) - start
            place = read_i32(seq_lens, s) - num_rows  # position of the chunk's first token
            # Row r of the span is head (begin + r) % group of token (begin + r) // group.
            begin = span * span_rows
            count = min(span_rows, num_rows * group - begin)
            owned = (begin, count, group, size, width)
            source = query + start * query_token + head * group * query_head
            strides = (query_token, query_head)
            loaded = (queries, factors)
            load_queries((kind, format), source, strides, owned, addresses, scratch, loaded, scale)
            num_lanes = (count + CHUNK - 1) // CHUNK * CHUNK
            for r in range(num_lanes):
                write_i32(positions, r, place + (begin + min(r, count - 1)) // group)
            for i in range(0, num_lanes, LANES):
                store(FLOAT, highest, i, splat(NOTHING))
                store(FLOAT, total, i, splat(ZERO))
                for d in range(width):
                    store(FLOAT, outputs, i * width + d * LANES, splat(ZERO))
            oldest, newest = place + begin // group, place + (begin + count - 1) // group
            first = max(0, oldest + 1 - reach)
            table = block_tables + s * table_stride
            base = kv_layer + head * kv_head
            for tile in range(first // TILE * TILE, newest + 1, TILE):
                sight = (max(first - tile, 0), min(newest + 1 - tile, TILE))
                padded = (sight[1] + STEP - 1) // STEP * STEP
                found = sight[1] - sight[0]
                kv_strides = (kv_block, kv_pair, kv_head, kv_token)
                find_rows(offsets, table, tile + sight[0], found, block_size, kv_strides)
                gather_rows(base, offsets, sight, padded, keys, size, width)
                gather_rows(base + kv_pair, offsets, sight, padded, rows, size, width)
                pack(kind, format, packed, width, padded)
                lanes = _rows_in_sight(kind, positions, count, tile, reach)
                fold(kind, packed, state, lanes, tile, width, scale, reach)
            strides = (num_heads * size * 2, size * 2)
            target = out + start * strides[0] + head * group * strides[1]
            kinds = (kind, format)
            save_outputs(kinds, outputs, total, owned, addresses, scratch, target, strides)
        end_products(kind)
        give_back(borrowed)

    return Kernel(prefill)


def _span_rows(starts: list[int], longest: int, num_heads: int, shape: torch.Size) -> int:
    """Query rows of an item: many, as K and V are packed for each, but soon done."""
    _, _, num_kv_heads, _, head_dim = shape
    most = ITEM_FLOP / (4 * head_dim * max(1, longest))
    if mailbox() != 0:
        most = min(most, starts[-1] * num_heads / ITEMS)
    return SPAN_UNIT * min(8, max(1, int(most) // SPAN_UNIT))


def attend_prompts(
    kind: np.generic,
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
    span_rows: int | None = None,
) -> torch.Tensor:
    """As `reference.prefill_attention`, in 16 bits; scale is positive.

    Args:
        kind: of short_kind.py.
        span_rows: query rows of an item, a multiple of SPAN_UNIT; no result depends on it.
    """
    assert query.dtype != torch.float32 and scale > 0
    _, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_layer.shape
    group = num_heads // num_kv_heads
    starts = query_start.tolist()
    if span_rows is None:
        span_rows = _span_rows(starts, int(seq_lens.max()), num_heads, kv_layer.shape)
    num_spans = sum(-(-(b - a) * group // span_rows) for a, b in pairwise(starts))
    out = torch.empty(query.shape, dtype=query.dtype)
    query_token, query_head, _ = query.stride()
    run(
        prefill_kernel(kind, format_of(query.dtype)),
        (
            query.data_ptr(),
            query_token * 2,
            query_head * 2,
            kv_layer.data_ptr(),
            *(stride * 2 for stride in kv_layer.stride()[:4]),
            block_tables.data_ptr(),
            block_tables.stride(0) * 4,
            seq_lens.data_ptr(),
            query_start.data_ptr(),
            out.data_ptr(),
            num_heads,
            num_kv_heads,
            block_size,
            head_dim,
            float_bits(scale * LOG2_E),
            sliding_window,
            span_rows,
        ),
        num_spans * num_kv_heads,
        1,
    )
    return out
