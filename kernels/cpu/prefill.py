"""Causal attention of prompt chunks over paged KV, with FlashAttention's tiling.

    for each sequence, KV head and span of query rows
      for each tile of 64 tokens in sight
        pack    K^T and V, both widened to float32, once for the span
        for each block of 24 query rows (tokens x the heads that share this KV head)
          scores [24, 64] = Q x K^T     online softmax     output [24, head_dim] += weights x V

This is for float32 and for CPUs without products of 16 bits; for others see prefill_columns.py.

Tiles stand at multiples of 64 tokens, wherever a chunk begins: a row's result does not depend on
how its prompt was cut. Slots that hold no token, or none in sight of the chunk, are never read.
"""

from itertools import pairwise

import torch

from octavo.kernels.cpu.heads import LOG2_E, ZERO, head_width, load_query, start_head, store_head
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, float_of, give_back, read_i32, unpacked
from octavo.kernels.cpu.packed import ROWS, TILE, add_values, pack_keys, pack_values, score
from octavo.kernels.cpu.paging import check_paged, find_rows
from octavo.kernels.cpu.prefill_columns import attend_prompts
from octavo.kernels.cpu.short_kind import short_kind
from octavo.kernels.cpu.softmax import softmax
from octavo.kernels.cpu.spans import find_run
from octavo.kernels.cpu.team import float_bits, kernel_per_format, run
from octavo.kernels.cpu.vector import FLOAT, splat, store

SPAN = 8 * ROWS  # query rows of an item


@inlined
def _attend_block(keys, values, scores, queries, outputs, rows, place, width):
    """Fold one packed tile into a block of query rows.

    rows: (the block's first row and their number, heads that share the KV head); place: (position
    of row 0, sliding window, first token of the tile).
    """
    block, count, group = rows
    first, window, tile = place
    stride = 4 * head_width(width)
    score(queries, keys, scores, count, width)
    for r in range(count):
        own = first + (block + r) // group - tile
        low = max(0, own + 1 - window) if window > 0 else 0
        row = scores + 4 * r * TILE
        if low <= min(own, TILE - 1):
            softmax(row, low, min(own + 1, TILE), TILE, outputs + r * stride, width)
        else:
            for i in range(0, TILE, LANES):
                store(FLOAT, row, i, splat(ZERO))
    add_values(scores, values, outputs, count, width)


@kernel_per_format
def _prefill(format):
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
            item_bytes,
            scale,  # of scores, times log2(e)
            window,  # sliding window; 0 for none
        ) = unpacked(args, 20)
        scale = float_of(scale)
        group = num_heads // num_kv_heads
        width = (size + LANES - 1) // LANES * LANES
        stride = 4 * head_width(width)
        num_floats = SPAN * (width + head_width(width)) + TILE * (2 * width + ROWS)
        num_floats += (LANES + 1) * width
        borrowed = borrow(4 * num_floats + 8 * (LANES + TILE) + 64)
        queries = (borrowed + 63) // 64 * 64  # [SPAN, width]
        outputs = queries + 4 * SPAN * width  # [SPAN, head_width]
        keys = outputs + SPAN * stride  # [width, TILE]
        values = keys + 4 * TILE * width  # [TILE, width]
        scores = values + 4 * TILE * width  # [ROWS, TILE]
        padded = scores + 4 * ROWS * TILE  # [17, width] of the format
        rows = padded + 4 * (LANES + 1) * width  # [16] int64
        offsets = rows + 8 * LANES  # [TILE] int64
        for i in range(0, SPAN * width, LANES):
            store(FLOAT, queries, i, splat(ZERO))
        for i in range(0, SPAN * head_width(width), LANES):
            store(FLOAT, outputs, i, splat(ZERO))
        for i in range(0, (LANES + 1) * width, LANES):
            store(FLOAT, padded, i, splat(ZERO))
        s, before = 0, 0  # the item's sequence, and items of those before it
        for item in range(first_item, last_item):
            s, before = find_run(item, s, before, query_start, group, num_kv_heads, SPAN)
            span, head = divmod(item - before, num_kv_heads)
            start = read_i32(query_start, s)
            num_rows = read_i32(query_start, s + 1) - start
            length = read_i32(seq_lens, s)
            place = length - num_rows  # position of the chunk's first token
            # Row r of the span is head (begin + r) % group of token (begin + r) // group.
            begin = span * SPAN
            count = min(SPAN, num_rows * group - begin)
            for r in range(count):
                token, h = divmod(begin + r, group)
                source = query + (start + token) * query_token + (head * group + h) * query_head
                load_query(format, source, queries + 4 * r * width, size, scale)
                start_head(outputs + r * stride, width)
            oldest, newest = place + begin // group, place + (begin + count - 1) // group
            first = max(0, oldest + 1 - window) if window > 0 else 0
            table = block_tables + s * table_stride
            base = kv_layer + head * kv_head
            for tile in range(first // TILE * TILE, newest + 1, TILE):
                sight = (max(first - tile, 0), min(newest + 1 - tile, TILE))
                find_rows(
                    offsets,
                    table,
                    tile + sight[0],
                    sight[1] - sight[0],
                    block_size,
                    (kv_block, kv_pair, kv_head, kv_token),
                )
                pack_keys(format, rows, base, offsets, sight, padded, keys, size, width, item_bytes)
                pack_values(
                    format,
                    rows,
                    base + kv_pair,
                    offsets,
                    sight,
                    padded,
                    values,
                    size,
                    width,
                    item_bytes,
                )
                for block in range(0, count, ROWS):
                    in_block = min(ROWS, count - block)
                    last = place + (begin + block + in_block - 1) // group
                    if last >= tile and (
                        window == 0 or place + (begin + block) // group - window < tile + TILE - 1
                    ):
                        _attend_block(
                            keys,
                            values,
                            scores,
                            queries + 4 * block * width,
                            outputs + block * stride,
                            (begin + block, in_block, group),
                            (place, window, tile),
                            width,
                        )
            for r in range(count):
                token, h = divmod(begin + r, group)
                target = out + ((start + token) * num_heads + head * group + h) * size * item_bytes
                store_head(format, outputs + r * stride, width, target, size)
        give_back(borrowed)

    return prefill


def prefill_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """As `reference.prefill_attention`."""
    check_paged(query, kv_layer, block_tables, seq_lens)
    assert query_start.dtype == torch.int32 and query_start.is_contiguous()
    kind = short_kind(query.dtype)
    if kind is not None:
        return attend_prompts(
            kind, query, kv_layer, block_tables, seq_lens, query_start, scale, sliding_window
        )
    _, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_layer.shape
    item = query.element_size()
    out = torch.empty(query.shape, dtype=query.dtype)
    query_token, query_head, _ = query.stride()
    group = num_heads // num_kv_heads
    starts = query_start.tolist()
    spans = (-(-(b - a) * group // SPAN) for a, b in pairwise(starts))
    run(
        _prefill(query.dtype),
        (
            query.data_ptr(),
            query_token * item,
            query_head * item,
            kv_layer.data_ptr(),
            *(stride * item for stride in kv_layer.stride()[:4]),
            block_tables.data_ptr(),
            block_tables.stride(0) * 4,
            seq_lens.data_ptr(),
            query_start.data_ptr(),
            out.data_ptr(),
            num_heads,
            num_kv_heads,
            block_size,
            head_dim,
            item,
            float_bits(scale * LOG2_E),
            sliding_window,
        ),
        sum(spans) * num_kv_heads,
        1,
    )
    return out
