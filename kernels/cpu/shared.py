"""Decode attention in which blocks that several sequences begin with are read once for all.

    for each group of sequences, each KV head
      rows      the members' query heads (members x the heads that share this KV head), transposed:
                a row is a lane, in chunks of at most 48
      for each tile of 64 shared tokens
        pack      K and V once
        for each chunk: scores, online softmax, outputs += V^T x weights   (columns.py)
      put every row's unfinished softmax aside, merged with what an outer group put there
    decode.py     each sequence resumes there and goes on over its own tokens alone

In bfloat16, weights are rounded to it before they meet V, where the CPU multiplies pairs; sums and
maxima are float32. A row depends on where its groups begin and end, not on who else is in them.
"""

import numpy as np
import torch

from octavo.kernels.cpu.columns import (
    HAS_PAIRS,
    MAX_VECTORS,
    add_columns,
    are_pairs,
    score_columns,
    softmax_columns,
)
from octavo.kernels.cpu.decode import attend_rows
from octavo.kernels.cpu.heads import LOG2_E, merge_head, partial_width, save_head, start_head
from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, copy_bytes, give_back, read_i32
from octavo.kernels.cpu.packed import TILE, ZERO, copy_pairs, copy_rows, pair_rows
from octavo.kernels.cpu.paging import AHEAD, check_paged, find_rows
from octavo.kernels.cpu.panels import transpose
from octavo.kernels.cpu.softmax import MINUS_INFINITY
from octavo.kernels.cpu.vector import FLOAT, first_lane, format_of, load, splat, store
from octavo.kernels.prefix_groups import PrefixGroups

PAIR_WIDTH = 2 * LANES  # head_dim is padded to a multiple of this


@jit
def _attend_shared(
    format,
    kind,  # of an element of products, see columns.py
    query,  # [S, num_heads, head_dim]
    query_strides,  # (sequence, head), bytes
    kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    kv_strides,  # (block, K to V, head, token), bytes
    block_tables,  # [S, max_blocks] int32
    table_stride,  # bytes
    groups,  # (members, group_start, blocks, levels), see prefix_groups.py
    partials,  # [S, num_heads, partial_width(head_dim padded to 16)] float32
    shape,  # (G, num_heads, num_kv_heads, block_size, head_dim)
    item_bytes,
    scale,  # of scores, times log2(e)
):
    num_groups, num_heads, num_kv_heads, block_size, size = shape
    members, group_start, blocks, levels = groups
    heads = num_heads // num_kv_heads
    width = (size + PAIR_WIDTH - 1) // PAIR_WIDTH * PAIR_WIDTH
    most, longest = 0, 0
    for g in range(num_groups):
        most = max(most, read_i32(group_start, g + 1) - read_i32(group_start, g))
        longest = max(longest, read_i32(blocks, 2 * g + 1) - read_i32(blocks, 2 * g))
    lanes = (most * heads + LANES - 1) // LANES * LANES
    num_floats = lanes * (2 * width + 3) + TILE * (2 * width + MAX_VECTORS * LANES)
    num_floats += 2 * LANES * width
    room = borrow(4 * (num_floats + LANES) + 64)
    queries = (room + 63) // 64 * 64  # a chunk after the other: [width, rows]
    outputs = queries + 4 * lanes * width  # as queries
    keys = outputs + 4 * lanes * width  # [TILE, width]
    values = keys + 4 * TILE * width  # [TILE, width]
    scores = values + 4 * TILE * width  # [TILE, MAX_VECTORS * 16]
    scratch = scores + 4 * TILE * MAX_VECTORS * LANES  # twice [16, width]
    factors = scratch + 8 * LANES * width  # [lanes]
    highest = factors + 4 * lanes  # [lanes]
    total = highest + 4 * lanes  # [lanes], and 16 more to read past the last
    rows = np.empty(LANES, np.int64)
    padded = np.zeros((LANES + 1, width * item_bytes), np.uint8)
    offsets = np.empty(longest * block_size + (AHEAD + 1) * LANES, np.int64)
    for g in range(num_groups):
        start = read_i32(group_start, g)
        owners = members + 4 * start
        count = (read_i32(group_start, g + 1) - start) * heads
        table = block_tables + read_i32(owners, 0) * table_stride
        begin = read_i32(blocks, 2 * g) * block_size
        num_tokens = read_i32(blocks, 2 * g + 1) * block_size - begin
        find_rows(offsets, table, begin, num_tokens, block_size, kv_strides)
        for kv_head in range(num_kv_heads):
            h = kv_head * heads
            first = query + h * query_strides[1]
            owned = (count, heads, size, width, item_bytes)
            _load_queries(
                format, kind, first, query_strides, owners, owned, scratch, queries, scale
            )
            for i in range(0, (count + LANES - 1) // LANES * LANES, LANES):
                store(FLOAT, highest, i, splat(MINUS_INFINITY))
                store(FLOAT, total, i, splat(ZERO))
                for d in range(width):
                    store(FLOAT, outputs, i * width + d * LANES, splat(ZERO))
            base = kv_layer + h // heads * kv_strides[2]
            for tile in range(0, num_tokens, TILE):
                place = (num_tokens, tile, size, width, item_bytes)
                second = base + kv_strides[1]
                if are_pairs(kind):
                    copy_pairs(rows, base, offsets, padded, keys, place)
                    pair_rows(format, rows, second, offsets, padded, values, place)
                else:
                    copy_rows(format, rows, base, offsets, padded, keys, place)
                    copy_rows(format, rows, second, offsets, padded, values, place)
                state = (highest, total, factors)
                of_tile = (count, min(TILE, num_tokens - tile), width)
                _attend_tile(kind, queries, keys, values, scores, outputs, state, of_tile, scale)
            target = partials + 4 * h * partial_width((size + LANES - 1) // LANES * LANES)
            state = (highest, total, read_i32(levels, g))
            _save(outputs, state, owners, owned, num_heads, scratch, target)
    give_back(room)


@inlined
def _chunk_vectors(lane, count):
    """How many vectors of rows the chunk that begins at a lane has; chunks are about even."""
    left = (count - lane + LANES - 1) // LANES
    num_chunks = (left + MAX_VECTORS - 1) // MAX_VECTORS
    return (left + num_chunks - 1) // num_chunks


@inlined
def _load_queries(
    format,
    kind,
    query,  # of sequence 0 and this KV head's first head
    query_strides,
    owners,  # [members] int32
    owned,  # (number of rows, heads of each member, head_dim, width, bytes per element)
    scratch,
    queries,
    scale,
):
    """queries[chunk][dimension][row] = query, scaled unless elements are pairs; no row, zero."""
    count, heads, size, width, item_bytes = owned
    depth = width // 2 if are_pairs(kind) else width
    addresses = np.empty(LANES, np.int64)
    lane = 0
    while lane < count:
        vectors = _chunk_vectors(lane, count)
        for vec in range(vectors):
            for i in range(0, LANES * width, LANES):
                store(FLOAT, scratch, i, splat(ZERO))
            for j in range(LANES):
                row = scratch + 4 * j * depth
                addresses[j] = row
                member, h = divmod(lane + vec * LANES + j, heads)
                if lane + vec * LANES + j < count:
                    source = query + read_i32(owners, member) * query_strides[0]
                    source += h * query_strides[1]
                    if are_pairs(kind):
                        copy_bytes(row, source, size * item_bytes)
                    else:
                        start_head(format, source, row, row + 4 * LANES * width, size, scale)
            target = queries + 4 * (lane * depth + vec * LANES)
            for i in range(0, depth, LANES):
                place = target + 4 * i * vectors * LANES
                transpose(FLOAT, addresses.ctypes.data, i, place, vectors * LANES)
        lane += vectors * LANES


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
        vectors = _chunk_vectors(lane, count)
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


@inlined
def _save(outputs, state, owners, owned, num_heads, scratch, partials):
    """Every row's softmax to its place in partials, which begin at this KV head's first head."""
    highest, total, level = state
    count, heads, size, width, _ = owned
    kept = (size + LANES - 1) // LANES * LANES
    addresses = np.empty(LANES, np.int64)
    lane = 0
    while lane < count:
        vectors = _chunk_vectors(lane, count)
        chunk = outputs + 4 * lane * width
        for vec in range(vectors):
            for i in range(0, width, LANES):
                for j in range(LANES):
                    addresses[j] = chunk + 4 * (i + j) * vectors * LANES
                transpose(FLOAT, addresses.ctypes.data, vec * LANES, scratch + 4 * i, width)
            for j in range(min(LANES, count - lane - vec * LANES)):
                r = lane + vec * LANES + j
                member, h = divmod(r, heads)
                place = read_i32(owners, member) * num_heads + h
                partial = partials + 4 * place * partial_width(kept)
                top, added = first_lane(load(FLOAT, highest, r)), first_lane(load(FLOAT, total, r))
                if level > 0:
                    merge_head(partial, scratch + 4 * j * width, top, added, kept)
                else:
                    save_head(partial, scratch + 4 * j * width, top, added, kept)
        lane += vectors * LANES


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
    block, pair, head, token, _ = kv_layer.stride()
    query_seq, query_head, _ = query.stride()
    lists = (groups.members, groups.group_start, groups.blocks, groups.levels)
    assert all(t.dtype == torch.int32 and t.is_contiguous() for t in lists)
    has_pairs = HAS_PAIRS and query.dtype == torch.bfloat16
    _attend_shared(
        format_of(query.dtype),
        format_of(query.dtype) if has_pairs else FLOAT,
        query.data_ptr(),
        (query_seq * item, query_head * item),
        kv_layer.data_ptr(),
        (block * item, pair * item, head * item, token * item),
        block_tables.data_ptr(),
        block_tables.stride(0) * 4,
        tuple(t.data_ptr() for t in lists),
        partials.data_ptr(),
        (len(groups.levels), num_heads, num_kv_heads, block_size, head_dim),
        item,
        np.float32(scale * LOG2_E),
    )
    return attend_rows(
        query,
        kv_layer,
        block_tables,
        seq_lens,
        scale,
        shared_lens=groups.shared_lens,
        partials=partials,
    )
