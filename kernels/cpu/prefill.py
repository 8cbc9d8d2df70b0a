"""Causal attention of prompt chunks over paged KV, with FlashAttention's tiling.

    for each sequence and KV head
      pack      K^T in tiles of 64 tokens and V, both widened to float32, once
      for each block of 24 query rows (tokens x the heads that share this KV head)
        for each tile of 64 tokens in sight
          scores [24, 64] = Q x K^T     online softmax     output [24, head_dim] += weights x V

Tiles stand at multiples of 64 tokens, wherever a chunk begins: a row's result does not depend on
how its prompt was cut. Slots that hold no token, or none in sight of the chunk, are never read.
"""

import numpy as np
import torch

from octavo.kernels.cpu.heads import LOG2_E, start_head, store_head
from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, give_back, read_i32
from octavo.kernels.cpu.packed import ROWS, TILE, ZERO, add_values, pack_keys, pack_values, score
from octavo.kernels.cpu.paging import AHEAD, check_paged, find_rows
from octavo.kernels.cpu.softmax import MINUS_INFINITY, softmax
from octavo.kernels.cpu.vector import FLOAT, format_of, splat, store


@jit
def _prefill(
    format,
    query,  # [T, num_heads, head_dim]
    query_strides,  # (token, head), bytes
    kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    kv_strides,  # (block, K to V, head, token), bytes
    block_tables,  # [S, max_blocks] int32
    table_stride,  # bytes
    seq_lens,  # [S] int32
    query_start,  # [S + 1] int32
    out,  # [T, num_heads, head_dim], contiguous
    shape,  # (S, num_heads, num_kv_heads, block_size, head_dim)
    item_bytes,
    scale,  # of scores, times log2(e)
    sliding_window,
):
    num_seqs, num_heads, num_kv_heads, block_size, size = shape
    group = num_heads // num_kv_heads
    width = (size + LANES - 1) // LANES * LANES
    out_strides = (num_heads * size * item_bytes, size * item_bytes)
    # Sixteen rows padded to whole vectors, and a row of zeros for tokens that are out of sight.
    padded = np.zeros((LANES + 1, width * item_bytes), np.uint8)
    for s in range(num_seqs):
        start = read_i32(query_start, s)
        num_rows = read_i32(query_start, s + 1) - start
        length = read_i32(seq_lens, s)
        first = max(0, length - num_rows + 1 - sliding_window) if sliding_window > 0 else 0
        origin = first // TILE * TILE
        tokens = (length - origin + TILE - 1) // TILE * TILE
        packed = borrow(8 * tokens * width + 64)
        keys = (packed + 63) // 64 * 64  # [tokens / 64, width, 64]
        values = keys + 4 * tokens * width  # [tokens, width]
        offsets = np.empty(tokens + (AHEAD + 1) * LANES, np.int64)
        table = block_tables + s * table_stride
        find_rows(offsets, table, first, length - first, block_size, kv_strides)
        for kv_head in range(num_kv_heads if num_rows > 0 else 0):
            base = kv_layer + kv_head * kv_strides[2]
            sight = (first - origin, length - origin)
            pack_keys(format, base, offsets, sight, padded, keys, size, width, item_bytes)
            base += kv_strides[1]
            pack_values(format, base, offsets, sight, padded, values, size, width, item_bytes)
            h = kv_head * group
            _attend(
                format,
                query + start * query_strides[0] + h * query_strides[1],
                query_strides,
                (num_rows, group, size, width),
                (length - num_rows - origin, sliding_window),
                keys,
                values,
                out + start * out_strides[0] + h * out_strides[1],
                out_strides,
                scale,
            )
        give_back(packed)


@inlined
def _attend(
    format,
    query,  # of the chunk's first token and this KV head's first head
    query_strides,
    shape,  # (chunk's rows, group, head_dim, width)
    place,  # (position of the first row, counted from the first tile; sliding window)
    keys,
    values,
    out,
    out_strides,
    scale,
):
    num_rows, group, size, width = shape
    first, window = place
    room = borrow(4 * ROWS * (2 * width + TILE) + 64)
    queries = (room + 63) // 64 * 64  # [ROWS, width]
    outputs = queries + 4 * ROWS * width  # [ROWS, width]
    scores = outputs + 4 * ROWS * width  # [ROWS, TILE]
    highest = np.empty(ROWS, np.float32)
    total = np.empty(ROWS, np.float32)
    for block in range(0, num_rows * group, ROWS):
        # Row r of the block is head (block + r) % group of token (block + r) // group.
        count = min(ROWS, num_rows * group - block)
        for i in range(0, ROWS * width, LANES):
            store(FLOAT, queries, i, splat(ZERO))
            store(FLOAT, outputs, i, splat(ZERO))
        for r in range(count):
            token, h = divmod(block + r, group)
            source = query + token * query_strides[0] + h * query_strides[1]
            start_head(
                format, source, queries + 4 * r * width, outputs + 4 * r * width, size, scale
            )
            highest[r] = MINUS_INFINITY
            total[r] = 0.0
        oldest = first + block // group
        newest = first + (block + count - 1) // group
        begin = max(0, oldest + 1 - window) // TILE * TILE if window > 0 else 0
        for tile in range(begin, newest + 1, TILE):
            score(queries, keys + 4 * tile * width, scores, count, width)
            for r in range(count):
                own = first + (block + r) // group - tile
                low = max(0, own + 1 - window) if window > 0 else 0
                row = scores + 4 * r * TILE
                if low <= min(own, TILE - 1):
                    high = min(own + 1, TILE)
                    output = outputs + 4 * r * width
                    softmax(row, low, high, TILE, highest, total, r, output, width)
                else:
                    for i in range(0, TILE, LANES):
                        store(FLOAT, row, i, splat(ZERO))
            add_values(scores, values + 4 * tile * width, outputs, count, width)
        for r in range(count):
            token, h = divmod(block + r, group)
            target = out + token * out_strides[0] + h * out_strides[1]
            store_head(format, outputs + 4 * r * width, total[r], target, size)
    give_back(room)


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
    _, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_layer.shape
    item = query.element_size()
    out = torch.empty(query.shape, dtype=query.dtype)
    block, pair, head, token, _ = kv_layer.stride()
    query_token, query_head, _ = query.stride()
    _prefill(
        format_of(query.dtype),
        query.data_ptr(),
        (query_token * item, query_head * item),
        kv_layer.data_ptr(),
        (block * item, pair * item, head * item, token * item),
        block_tables.data_ptr(),
        block_tables.stride(0) * 4,
        seq_lens.data_ptr(),
        query_start.data_ptr(),
        out.data_ptr(),
        (len(seq_lens), num_heads, num_kv_heads, block_size, head_dim),
        item,
        np.float32(scale * LOG2_E),
        sliding_window,
    )
    return out
