"""Paged attention of one query row per sequence (PagedAttention, SOSP'23, 4.1).

    for each sequence, for each segment of at most 256 tokens
      K pass   for each tile of 16 tokens, each KV head: widen K to float32 once, score it against
               all query heads that share it
      softmax  of each query head's scores; what came before is rescaled to the new maximum
      V pass   as the K pass: weighted sum of V into the output

Rows are found through the block table, and fetched two tiles ahead of their use. Segments start at
the first token in sight and are taken in order: a sequence's result depends on nothing but that
sequence. A tile past the end repeats the last row under a weight of zero: slots that hold no token
are never read. A sequence may resume from its first tokens' softmax, computed by shared.py.
"""

import numpy as np
import torch

from octavo.kernels.cpu.heads import LOG2_E, partial_width, resume_head, start_head, store_head
from octavo.kernels.cpu.jit import jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, give_back, read_i32
from octavo.kernels.cpu.paging import AHEAD, check_paged, fetch_first, find_rows, take_rows
from octavo.kernels.cpu.softmax import MINUS_INFINITY, softmax
from octavo.kernels.cpu.tiles import MAX_HEADS, add_weighted_rows, score_rows
from octavo.kernels.cpu.vector import format_of

SEGMENT = 256  # tokens


@jit
def _decode(
    format,
    query,  # [S, num_heads, head_dim]
    query_strides,  # (sequence, head), bytes
    kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    kv_strides,  # (block, K to V, head, token), bytes
    block_tables,  # [S, max_blocks] int32
    table_stride,  # bytes
    seq_lens,  # [S] int32
    out,  # [S, num_heads, head_dim], contiguous
    shape,  # (S, num_heads, num_kv_heads, block_size, head_dim)
    item_bytes,
    scale,  # of scores, times log2(e)
    sliding_window,
    shared_lens,  # [S] int32: tokens that are in `partials` already; 0 for none
    partials,  # [S, num_heads, partial_width(width)] float32 (heads.py); 0 for none
):
    num_seqs, num_heads, num_kv_heads, block_size, size = shape
    group = num_heads // num_kv_heads
    width = (size + LANES - 1) // LANES * LANES
    row = 4 * width
    room = borrow(4 * num_heads * (2 * width + SEGMENT) + 64)
    queries = (room + 63) // 64 * 64  # [num_heads, width]
    outputs = queries + num_heads * row  # [num_heads, width]
    scores = outputs + num_heads * row  # [num_heads, SEGMENT]
    highest = np.empty(num_heads, np.float32)
    total = np.empty(num_heads, np.float32)
    rows = np.empty(LANES, np.int64)
    padded = np.zeros((LANES if width > size else 0, width * item_bytes), np.uint8)
    offsets = np.empty(SEGMENT + AHEAD * LANES, np.int64)
    for s in range(num_seqs):
        shared = read_i32(shared_lens, s) if shared_lens != 0 else 0
        for h in range(num_heads):
            source = query + s * query_strides[0] + h * query_strides[1]
            start_head(format, source, queries + h * row, outputs + h * row, size, scale)
            highest[h] = MINUS_INFINITY
            total[h] = 0.0
            if shared > 0:
                partial = partials + 4 * (s * num_heads + h) * partial_width(width)
                resume_head(partial, outputs + h * row, highest, total, h, width)
        length = read_i32(seq_lens, s)
        first = max(shared, length - sliding_window) if sliding_window > 0 else shared
        if s + 1 < num_seqs:
            later = read_i32(seq_lens, s + 1)
            begin = read_i32(shared_lens, s + 1) if shared_lens != 0 else 0
            if sliding_window > 0:
                begin = max(begin, later - sliding_window)
            table = block_tables + (s + 1) * table_stride
            fetch_first(
                kv_layer,
                kv_strides,
                table,
                begin,
                later,
                block_size,
                num_kv_heads,
                size * item_bytes,
            )
        for segment in range(first, length, SEGMENT):
            count = min(SEGMENT, length - segment)
            end = (count + LANES - 1) // LANES * LANES
            table = block_tables + s * table_stride
            find_rows(offsets, table, segment, count, block_size, kv_strides)
            for position in range(0, count, LANES):
                for kv_head in range(num_kv_heads):
                    base = kv_layer + kv_head * kv_strides[2]
                    take_rows(rows, base, offsets, position, padded, size * item_bytes)
                    for h in range(kv_head * group, (kv_head + 1) * group, MAX_HEADS):
                        heads = min(MAX_HEADS, (kv_head + 1) * group - h)
                        target = scores + 4 * (h * SEGMENT + position)
                        score_rows(
                            format,
                            queries + h * row,
                            rows.ctypes.data,
                            width,
                            heads,
                            target,
                            4 * SEGMENT,
                        )
            for h in range(num_heads):
                softmax(
                    scores + h * 4 * SEGMENT,
                    0,
                    count,
                    end,
                    highest,
                    total,
                    h,
                    outputs + h * row,
                    width,
                )
            for position in range(0, count, LANES):
                for kv_head in range(num_kv_heads):
                    base = kv_layer + kv_head * kv_strides[2] + kv_strides[1]
                    take_rows(rows, base, offsets, position, padded, size * item_bytes)
                    for h in range(kv_head * group, (kv_head + 1) * group, MAX_HEADS):
                        heads = min(MAX_HEADS, (kv_head + 1) * group - h)
                        weights = scores + 4 * (h * SEGMENT + position)
                        add_weighted_rows(
                            format,
                            outputs + h * row,
                            rows.ctypes.data,
                            width,
                            heads,
                            weights,
                            4 * SEGMENT,
                        )
        for h in range(num_heads):
            target = out + (s * num_heads + h) * size * item_bytes
            store_head(format, outputs + h * row, total[h], target, size)
    give_back(room)


def decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """As `reference.decode_attention`."""
    return attend_rows(query, kv_layer, block_tables, seq_lens, scale, sliding_window)


def attend_rows(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
    shared_lens: torch.Tensor | None = None,
    partials: torch.Tensor | None = None,
) -> torch.Tensor:
    """`decode_attention`, continued from what `shared.py` left of each sequence's first tokens."""
    check_paged(query, kv_layer, block_tables, seq_lens)
    num_seqs, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = kv_layer.shape
    item = query.element_size()
    out = torch.empty(query.shape, dtype=query.dtype)
    block, pair, head, token, _ = kv_layer.stride()
    query_seq, query_head, _ = query.stride()
    _decode(
        format_of(query.dtype),
        query.data_ptr(),
        (query_seq * item, query_head * item),
        kv_layer.data_ptr(),
        (block * item, pair * item, head * item, token * item),
        block_tables.data_ptr(),
        block_tables.stride(0) * 4,
        seq_lens.data_ptr(),
        out.data_ptr(),
        (num_seqs, num_heads, num_kv_heads, block_size, head_dim),
        item,
        np.float32(scale * LOG2_E),
        sliding_window,
        0 if shared_lens is None else shared_lens.data_ptr(),
        0 if partials is None else partials.data_ptr(),
    )
    return out
