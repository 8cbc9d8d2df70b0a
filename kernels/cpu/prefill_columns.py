"""Prefill attention in bfloat16 on CPUs that multiply it: a query row is a lane.

    for each sequence, KV head and span of query rows (tokens x the heads that share the KV head)
      queries   transposed once, in chunks of a few vectors of 16 rows
      for each tile of tokens in sight
        pack    K as it is, V as the products want it, once for the span
        for each chunk: scores [tokens, rows], online softmax, outputs += V^T x weights

Scores, maxima and sums are float32; weights are rounded to bfloat16 before they meet V. Tiles stand
at multiples of their size, wherever a chunk begins, and parts of 32 tokens out of a chunk's sight
are left out, which would add zeros: a row's result does not depend on how its prompt was cut.
"""

import functools

import numpy as np

from octavo.kernels.cpu.column_softmax import NOTHING
from octavo.kernels.cpu.columns import MAX_VECTORS
from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import (
    borrow,
    float_of,
    give_back,
    read_i32,
    unpacked,
    write_i32,
    write_i64,
)
from octavo.kernels.cpu.paging import find_rows
from octavo.kernels.cpu.pair_attention import attend_pairs, pair_tokens
from octavo.kernels.cpu.panels import transpose
from octavo.kernels.cpu.short_kind import SHORT, are_tiles, begin_products, end_products
from octavo.kernels.cpu.sight import EVERYTHING, STEP, TILE
from octavo.kernels.cpu.spans import find_run
from octavo.kernels.cpu.team import Kernel
from octavo.kernels.cpu.tile_attention import CHUNK, attend_tile
from octavo.kernels.cpu.tile_rows import (
    PAIR_WIDTH,
    clear_row,
    copy_row,
    gather_rows,
    transpose_rows,
)
from octavo.kernels.cpu.vector import (
    FLOAT,
    first_lane,
    load,
    mul,
    splat,
    store,
    store_some,
)

SPAN_UNIT = 96  # spans are multiples of it: whole chunks, of two vectors or of three


@inlined
def _chunk_vectors(kind, lane, count):
    """Vectors of rows of the chunk that begins at a lane."""
    if are_tiles(kind):
        return CHUNK // LANES
    return min(MAX_VECTORS, (count - lane + LANES - 1) // LANES)


@inlined
def _pack(kind, rows, width, num_tokens, values):
    """values = V as the products want it, of rows [num_tokens, width]."""
    if are_tiles(kind):
        transpose_rows(rows, width, num_tokens, values, 2 * TILE)
    else:
        pair_tokens(rows, width, num_tokens, values)


@inlined
def _fold(kind, packed, rows, lanes, tile, width, scale, reach):
    """Fold a packed tile into the softmax of rows first .. end - 1."""
    keys, values, scores, weights = packed
    if are_tiles(kind):
        queries, outputs, positions, highest, total, _ = rows
        chunks = (lanes[0] // CHUNK, (lanes[1] + CHUNK - 1) // CHUNK)
        state = (queries, outputs, positions, highest, total)
        attend_tile(packed, state, chunks, tile, width, scale, reach)
    else:
        attend_pairs((keys, values, scores), rows, lanes, tile, width, scale, reach)


@inlined
def _load_queries(kind, source, strides, owned, addresses, scratch, queries):
    """queries[chunk][pair of dimensions][row]; rows past the last are zeros.

    source: the span's KV head and token 0; owned: (first row, rows, heads, head_dim, width).
    """
    first, count, group, size, width = owned
    depth = width // 2
    lane = 0
    while lane < count:
        vectors = _chunk_vectors(kind, lane, count)
        for vec in range(vectors):
            for j in range(LANES):
                row = scratch + 4 * j * depth
                write_i64(addresses, j, row)
                r = lane + vec * LANES + j
                if r < count:
                    token, h = divmod(first + r, group)
                    copy_row(source + token * strides[0] + h * strides[1], row, size, width)
                else:
                    clear_row(row, width)
            target = queries + 4 * (lane * depth + vec * LANES)
            for i in range(0, depth, LANES):
                transpose(FLOAT, addresses, i, target + 4 * i * vectors * LANES, vectors * LANES)
        lane += vectors * LANES


@inlined
def _save_outputs(kind, outputs, total, owned, addresses, scratch, out, strides):
    """The rows' weighted means to out, of the span's KV head and token 0."""
    first, count, group, size, width = owned
    whole = size // LANES * LANES
    lane = 0
    while lane < count:
        vectors = _chunk_vectors(kind, lane, count)
        for vec in range(vectors):
            for i in range(0, size, LANES):
                for j in range(LANES):
                    place = lane * width + (i + j) * vectors * LANES + vec * LANES
                    write_i64(addresses, j, outputs + 4 * place)
                transpose(FLOAT, addresses, 0, scratch + 4 * i, width)
            for j in range(min(LANES, count - lane - vec * LANES)):
                r = lane + vec * LANES + j
                inverse = splat(np.float32(1.0) / first_lane(load(FLOAT, total, r)))
                token, h = divmod(first + r, group)
                target = out + token * strides[0] + h * strides[1]
                row = scratch + 4 * j * width
                for i in range(0, whole, LANES):
                    store(SHORT, target, i, mul(load(FLOAT, row, i), inverse))
                if whole < size:
                    rest = mul(load(FLOAT, row, whole), inverse)
                    store_some(SHORT, target, whole, size - whole, rest)
        lane += vectors * LANES


@inlined
def _rows_in_sight(kind, positions, count, tile, reach):
    """(first, end) of the rows whose chunks may see something of the tile; first begins a chunk."""
    chunk = _chunk_vectors(kind, 0, SPAN_UNIT) * LANES
    first = 0
    while read_i32(positions, min(first + chunk, count) - 1) < tile:
        first += chunk
    end = count
    while end > first and read_i32(positions, end - 1) - reach >= tile + TILE - 1:
        end -= 1
    return first, end


@functools.lru_cache(typed=True)  # kinds are equal numbers of unequal types
def prefill_kernel(kind: np.generic) -> Kernel:
    """The kernel for bfloat16 by one kind of short_kind.py."""

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
        most = LANES * max(CHUNK // LANES, MAX_VECTORS)
        num_bytes = span_rows * (6 * width + 4 * 4) + TILE * (6 * width + 4 * most + 4 * CHUNK)
        num_bytes += 4 * LANES * (width + 1) + 8 * (2 * LANES + TILE) + 64
        borrowed = borrow(num_bytes)
        queries = (borrowed + 63) // 64 * 64  # a chunk after the other: [width / 2, rows] of pairs
        outputs = queries + 2 * span_rows * width  # a chunk after the other: [width, rows]
        keys = outputs + 4 * span_rows * width  # [TILE, width]
        values = keys + 2 * TILE * width  # as packed
        rows = values + 2 * TILE * width  # [TILE, width], V before it is packed
        scores = rows + 2 * TILE * width  # [TILE, most]
        weights = scores + 4 * TILE * most  # [2, TILE / 2, CHUNK] of pairs, for tiles
        scratch = weights + 4 * TILE * CHUNK  # [16, width] float32
        positions = scratch + 4 * LANES * width  # [span_rows] int32
        highest = positions + 4 * span_rows  # [span_rows]
        factors = highest + 4 * span_rows  # [span_rows]
        total = factors + 4 * span_rows  # [span_rows], and 16 more to read past the last
        addresses = total + 4 * (span_rows + LANES)  # [16] int64
        offsets = addresses + 8 * LANES  # [TILE + 16] int64
        packed = (keys, values, scores, weights)
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
            _load_queries(kind, source, strides, owned, addresses, scratch, queries)
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
                _pack(kind, rows, width, padded, values)
                lanes = _rows_in_sight(kind, positions, count, tile, reach)
                _fold(kind, packed, state, lanes, tile, width, scale, reach)
            strides = (num_heads * size * 2, size * 2)
            target = out + start * strides[0] + head * group * strides[1]
            _save_outputs(kind, outputs, total, owned, addresses, scratch, target, strides)
        end_products(kind)
        give_back(borrowed)

    return Kernel(prefill)
