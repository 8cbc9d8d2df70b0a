"""Decode attention in which blocks that several sequences begin with are read once for all.

    for each level of nesting, each group of sequences, each KV head
      rows      the members' query heads (members x the heads that share this KV head), transposed:
                a row is a lane, in chunks of a few vectors, 48 rows to an item of work
      for each tile of 64 shared tokens
        pack      K and V once
        for each chunk: scores, online softmax, outputs += V^T x weights   (columns.py)
      put every row's unfinished softmax aside, merged with what an outer group put there
    decode.py     each sequence resumes there and goes on over its own tokens alone

Numbers of 16 bits are multiplied by the CPU's matrix tiles, or as integers where it multiplies
those best (shared_short.py). Where it multiplies pairs of bfloat16, weights are rounded to it
before they meet V; sums and maxima are float32. A row depends on where its groups begin and end,
not on who else is in them.
"""

from itertools import pairwise

import numpy as np
import torch

from octavo.kernels.cpu.column_softmax import softmax_columns
from octavo.kernels.cpu.columns import (
    MAX_VECTORS,
    add_columns,
    are_pairs,
    score_columns,
)
from octavo.kernels.cpu.decode import attend_rows
from octavo.kernels.cpu.heads import LOG2_E, ZERO, head_width
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import (
    borrow,
    float_of,
    give_back,
    read_i32,
    unpacked,
)
from octavo.kernels.cpu.packed import TILE, copy_pairs, copy_rows, pair_rows
from octavo.kernels.cpu.paging import check_paged, find_rows
from octavo.kernels.cpu.pair_dot import HAS_PAIRS
from octavo.kernels.cpu.query_columns import chunk_vectors, load_queries, save_outputs
from octavo.kernels.cpu.shared_short import shared_kernel
from octavo.kernels.cpu.short_kind import PAIRS, TILES, short_kind
from octavo.kernels.cpu.softmax import MINUS_INFINITY
from octavo.kernels.cpu.spans import find_run
from octavo.kernels.cpu.team import float_bits, kernel_per_format, mailbox, run
from octavo.kernels.cpu.tile_attention import CHUNK
from octavo.kernels.cpu.vector import FLOAT, format_of, splat, store
from octavo.kernels.prefix_groups import PrefixGroups

PAIR_WIDTH = 2 * LANES  # head_dim is padded to a multiple of this
SPAN = 3 * LANES  # rows of an item
MIN_CHUNKS = 3  # of an item in 16 bits: packing K and V costs about as much by tiles
MAX_ROWS = 768
# At most, about 1 ms of each kind; a core that is wanted back waits for an item.
ITEM_FLOP = 5e8, 1.2e8
ITEMS = 8  # at least, for a team, where there are rows enough


@kernel_per_format
def _attend_shared(format):
    # Of an element of products, see columns.py.
    kind = format if HAS_PAIRS and format is format_of(torch.bfloat16) else FLOAT

    def attend_shared(args, first_item, last_item):
        (
            query,  # [S, num_heads, head_dim]
            query_seq,
            query_head,  # strides in bytes
            kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
            kv_block,
            kv_pair,
            kv_head,
            kv_token,  # strides in bytes
            block_tables,  # [S, max_blocks] int32
            table_stride,  # bytes
            members,
            group_start,
            blocks,
            levels,  # see prefix_groups.py
            partials,  # [S, num_heads, head_width(head_dim padded to 16)] float32
            num_heads,
            num_kv_heads,
            block_size,
            size,  # head_dim
            item_bytes,
            scale,  # of scores, times log2(e)
            span_rows,  # rows of an item
            g,  # the level's first group
        ) = unpacked(args, 23)
        scale = float_of(scale)
        heads = num_heads // num_kv_heads
        width = (size + PAIR_WIDTH - 1) // PAIR_WIDTH * PAIR_WIDTH
        num_floats = span_rows * (2 * width + 3) + TILE * (2 * width + MAX_VECTORS * LANES)
        num_floats += 2 * LANES * head_width(width) + (LANES + 1) * width + LANES
        borrowed = borrow(4 * num_floats + 8 * (LANES + 2 * TILE) + 64)
        queries = (borrowed + 63) // 64 * 64  # a chunk after the other: [width, rows]
        outputs = queries + 4 * span_rows * width  # as queries
        keys = outputs + 4 * span_rows * width  # [TILE, width]
        values = keys + 4 * TILE * width  # [TILE, width]
        scores = values + 4 * TILE * width  # [TILE, MAX_VECTORS * 16]
        scratch = scores + 4 * TILE * MAX_VECTORS * LANES  # twice [16, head_width]
        factors = scratch + 8 * LANES * head_width(width)  # [span_rows]
        highest = factors + 4 * span_rows  # [span_rows]
        total = highest + 4 * span_rows  # [span_rows], and 16 more to read past the last
        padded = total + 4 * (span_rows + LANES)  # [17, width] of the format
        rows = padded + 4 * (LANES + 1) * width  # [16] int64
        offsets = rows + 8 * LANES  # [2 * TILE] int64
        for i in range(0, (LANES + 1) * width, LANES):
            store(FLOAT, padded, i, splat(ZERO))
        before = 0  # items of this level's groups before g
        for item in range(first_item, last_item):
            g, before = find_run(item, g, before, group_start, heads, num_kv_heads, span_rows)
            span, own = divmod(item - before, num_kv_heads)
            h = own * heads
            start = read_i32(group_start, g)
            owners = members + 4 * start
            first = span * span_rows
            count = min(span_rows, (read_i32(group_start, g + 1) - start) * heads - first)
            table = block_tables + read_i32(owners, 0) * table_stride
            begin = read_i32(blocks, 2 * g) * block_size
            num_tokens = read_i32(blocks, 2 * g + 1) * block_size - begin
            owned = (first, count, heads, size, width, item_bytes)
            load_queries(
                format,
                kind,
                query + h * query_head,
                (query_seq, query_head),
                owners,
                owned,
                rows,
                scratch,
                (queries, 0),
                scale,
            )
            for i in range(0, (count + LANES - 1) // LANES * LANES, LANES):
                store(FLOAT, highest, i, splat(MINUS_INFINITY))
                store(FLOAT, total, i, splat(ZERO))
                for d in range(width):
                    store(FLOAT, outputs, i * width + d * LANES, splat(ZERO))
            base = kv_layer + own * kv_head
            second = base + kv_pair
            for tile in range(0, num_tokens, TILE):
                found = min(2 * TILE, num_tokens - tile)
                kv_strides = (kv_block, kv_pair, kv_head, kv_token)
                find_rows(offsets, table, begin + tile, found, block_size, kv_strides)
                place = (found, 0, size, width, item_bytes)
                if are_pairs(kind):
                    copy_pairs(rows, base, offsets, padded, keys, place)
                    pair_rows(format, rows, second, offsets, padded, values, place)
                else:
                    copy_rows(format, rows, base, offsets, padded, keys, place)
                    copy_rows(format, rows, second, offsets, padded, values, place)
                state = (highest, total, factors)
                of_tile = (count, min(TILE, num_tokens - tile), width)
                _attend_tile(kind, queries, keys, values, scores, outputs, state, of_tile, scale)
            row = 4 * head_width((size + LANES - 1) // LANES * LANES)
            state = (highest, total, read_i32(levels, g))
            save_outputs(
                kind, outputs, state, owners, owned, num_heads, rows, scratch, partials + h * row
            )
        give_back(borrowed)

    return attend_shared


@inlined
def _attend_tile(kind, queries, keys, values, scores, outputs, state, sizes, scale):
    """Fold one tile of packed K and V into the softmax of every row."""
    highest, total, factors = state
    count, num_tokens, width = sizes
    is_paired = are_pairs(kind)
    depth = width // 2 if is_paired else width
    whole = (num_tokens + LANES - 1) // LANES * LANES
    lane = 0
    while lane < count:
        vectors = chunk_vectors(kind, lane, count)
        queries_of, outputs_of = queries + 4 * lane * depth, outputs + 4 * lane * width
        tops, sums, factors_of = highest + 4 * lane, total + 4 * lane, factors + 4 * lane
        score_columns(kind, keys, depth, whole, queries_of, scores, depth, vectors, factors_of)
        softmax_columns(
            kind, scores, num_tokens, vectors, scale if is_paired else np.float32(1.0),
            tops, sums, factors_of,
        )  # fmt: skip
        num_weights = num_tokens // 2 if is_paired else num_tokens
        add_columns(
            kind, values, width, width, scores, outputs_of, num_weights, vectors, factors_of
        )
        lane += vectors * LANES


def _short_span(kind: np.generic, groups: PrefixGroups, num_heads: int, shape: torch.Size) -> int:
    """Rows of an item in 16 bits: many, as K and V are packed for each, but soon done."""
    _, _, num_kv_heads, block_size, head_dim = shape
    chunk, item_flop = (CHUNK, ITEM_FLOP[0]) if kind is TILES else (LANES, ITEM_FLOP[1])
    most = item_flop / (4 * head_dim * max(1, groups.max_blocks * block_size))
    most = min(most, MAX_ROWS)
    if mailbox() != 0:
        most = min(most, max(MIN_CHUNKS * chunk, groups.max_members * num_heads / ITEMS))
    return chunk * max(1, int(most) // chunk)


def _level_items(groups: PrefixGroups, heads: int, span_rows: int) -> list[tuple[int, int]]:
    """(first group, items of each KV head) of each level: an inner group needs what outer left.

    Without groups it is one level with nothing to do, for which the kernel is still compiled.
    """
    items: list[tuple[int, int]] = []
    starts = groups.group_start.tolist()
    for g, (level, (start, end)) in enumerate(
        zip(groups.levels.tolist(), pairwise(starts), strict=True)
    ):
        if level == len(items):
            items.append((g, 0))
        first, spans = items[level]
        items[level] = (first, spans - (-(end - start) * heads // span_rows))
    return items or [(0, 0)]


def grouped_decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    groups: PrefixGroups,
    scale: float,
) -> torch.Tensor:
    """As `reference.grouped_decode_attention`."""
    check_paged(query, kv_layer, block_tables, seq_lens)
    num_seqs, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_layer.shape
    item = query.element_size()
    width = -(-head_dim // LANES) * LANES
    partials = torch.empty((num_seqs, num_heads, width + 2 * LANES), dtype=torch.float32)
    kernel, span_rows = _attend_shared(query.dtype), SPAN
    kind = short_kind(query.dtype)
    if kind is not None and kind is not PAIRS:
        kernel = shared_kernel(kind, format_of(query.dtype))
        span_rows = _short_span(kind, groups, num_heads, kv_layer.shape)
    query_seq, query_head, _ = query.stride()
    lists = (groups.members, groups.group_start, groups.blocks, groups.levels)
    assert all(t.dtype == torch.int32 and t.is_contiguous() for t in lists)
    args = (
        query.data_ptr(),
        query_seq * item,
        query_head * item,
        kv_layer.data_ptr(),
        *(stride * item for stride in kv_layer.stride()[:4]),
        block_tables.data_ptr(),
        block_tables.stride(0) * 4,
        *(t.data_ptr() for t in lists),
        partials.data_ptr(),
        num_heads,
        num_kv_heads,
        block_size,
        head_dim,
        item,
        float_bits(scale * LOG2_E),
        span_rows,
    )
    for first, spans in _level_items(groups, num_heads // num_kv_heads, span_rows):
        run(kernel, (*args, first), spans * num_kv_heads, 1)
    return attend_rows(
        query,
        kv_layer,
        block_tables,
        seq_lens,
        scale,
        shared_lens=groups.shared_lens,
        partials=partials,
    )
