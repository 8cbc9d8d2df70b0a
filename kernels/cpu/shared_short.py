"""The shared part of grouped decode attention in 16 bits, by one kind of short_kind.py.

    for each group, each KV head and span of rows (members x the heads that share the KV head)
      queries   transposed once, in chunks of 32 rows for tiles, of 16 for integers
      for each tile of 64 shared tokens
        pack    K and V as the kind wants them, once for the span; the next tile's rows are fetched
        chunks  scores, online softmax, outputs += V^T x weights      (short_tile.py)
      put every row's unfinished softmax aside, as shared.py does

A row sees all that its group shares. By tiles its reference may lie below its maximum, which
whoever goes on from there need not know: sums are relative to it.
"""

import functools

import numpy as np

from octavo.kernels.cpu.column_softmax import NOTHING
from octavo.kernels.cpu.heads import ZERO, head_width
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import (
    borrow,
    float_of,
    give_back,
    prefetch,
    read_i32,
    read_i64,
    unpacked,
    write_i32,
)
from octavo.kernels.cpu.paging import find_rows
from octavo.kernels.cpu.query_columns import chunk_vectors, load_queries, save_outputs
from octavo.kernels.cpu.short_kind import are_tiles, begin_products, end_products
from octavo.kernels.cpu.short_tile import fold, pack, places, tile_bytes
from octavo.kernels.cpu.sight import EVERYTHING, STEP, TILE
from octavo.kernels.cpu.spans import find_run
from octavo.kernels.cpu.team import Kernel
from octavo.kernels.cpu.tile_rows import PAIR_WIDTH, gather_rows
from octavo.kernels.cpu.vector import FLOAT, splat, store


@inlined
def _fetch_ahead(base, offsets, first, end, row_bytes):
    for t in range(first, end):
        for i in range(0, row_bytes, LINE):
            prefetch(base + read_i64(offsets, t) + i)


@functools.lru_cache(typed=True)  # kinds and formats are equal numbers of unequal types
def shared_kernel(kind: np.generic, format: np.generic) -> Kernel:
    """The kernel for a format of 16 bits by tiles or integers."""

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
            _,  # bytes of an element
            scale,  # of scores, times log2(e)
            span_rows,  # rows of an item, whole chunks
            g,  # the level's first group
        ) = unpacked(args, 23)
        scale = float_of(scale)
        heads = num_heads // num_kv_heads
        width = (size + PAIR_WIDTH - 1) // PAIR_WIDTH * PAIR_WIDTH
        num_bytes = span_rows * (6 * width + 4 * 4) + tile_bytes(width)
        num_bytes += 4 * LANES * head_width(width) + 8 * (3 * LANES + 2 * TILE) + 4 * LANES + 64
        borrowed = borrow(num_bytes)
        queries = (borrowed + 63) // 64 * 64  # a chunk after the other: [width / 2, rows] of pairs
        outputs = queries + 2 * span_rows * width  # a chunk after the other: [width, rows]
        packed = places(outputs + 4 * span_rows * width, width)
        scratch = outputs + 4 * span_rows * width + tile_bytes(width)  # [16, head_width]
        positions = scratch + 4 * LANES * head_width(width)  # [span_rows] int32
        highest = positions + 4 * span_rows  # [span_rows]
        scales = highest + 4 * span_rows  # [span_rows], of integers' scores
        total = scales + 4 * span_rows  # [span_rows], and 16 more to read past the last
        addresses = total + 4 * (span_rows + LANES)  # [16] int64
        offsets = addresses + 8 * LANES  # [2 * TILE + 16] int64
        keys, rows = packed[0], packed[5]
        state = (queries, outputs, positions, highest, total, scales)
        kv_strides = (kv_block, kv_pair, kv_head, kv_token)
        chunk = chunk_vectors(kind, 0, LANES) * LANES
        begin_products(kind)
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
            owned = (first, count, heads, size, width, 2)
            source = query + h * query_head
            strides = (query_seq, query_head)
            loaded = (queries, scales)
            load_queries(
                format, kind, source, strides, owners, owned, addresses, scratch, loaded, scale
            )
            num_lanes = (count + chunk - 1) // chunk * chunk
            step = num_lanes if are_tiles(kind) else chunk
            for r in range(num_lanes):
                write_i32(positions, r, num_tokens - 1)
            for i in range(0, num_lanes, LANES):
                store(FLOAT, highest, i, splat(NOTHING))
                store(FLOAT, total, i, splat(ZERO))
            for i in range(0, num_lanes * width, LANES):
                store(FLOAT, outputs, i, splat(ZERO))
            base = kv_layer + own * kv_head
            for tile in range(0, num_tokens, TILE):
                found = min(2 * TILE, num_tokens - tile)
                find_rows(offsets, table, begin + tile, found, block_size, kv_strides)
                end = min(TILE, found)
                padded = (end + STEP - 1) // STEP * STEP
                gather_rows(base, offsets, (0, end), padded, keys, size, width)
                gather_rows(base + kv_pair, offsets, (0, end), padded, rows, size, width)
                pack(kind, format, packed, width, padded)
                fetched = TILE
                for lane in range(0, num_lanes, step):
                    lanes = (lane, lane + step, num_lanes)
                    until = TILE + (found - TILE) * lanes[1] // num_lanes
                    _fetch_ahead(base, offsets, fetched, until, 2 * size)
                    _fetch_ahead(base + kv_pair, offsets, fetched, until, 2 * size)
                    fetched = max(fetched, until)
                    fold(kind, packed, state, lanes, tile, width, scale, EVERYTHING)
            row = 4 * head_width((size + LANES - 1) // LANES * LANES)
            softmax = (highest, total, read_i32(levels, g))
            target = partials + h * row
            save_outputs(
                kind, outputs, softmax, owners, owned, num_heads, addresses, scratch, target
            )
        end_products(kind)
        give_back(borrowed)

    return Kernel(attend_shared)
