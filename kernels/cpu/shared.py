"""Decode attention in which blocks that several sequences begin with are read once for all.

    for each group of sequences, each KV head
      rows      the members' query heads (members x the heads that share this KV head)
      for each tile of 64 shared tokens
        pack      K^T and V, widened to float32, once
        for each block of 24 rows: scores, online softmax, output += weights x V   (as prefill.py)
      put aside every row's unfinished softmax
    decode.py     each sequence resumes there and goes on over its own tokens alone

Nested groups go from the outermost in: an inner one resumes what the outer put aside. So one
softmax runs through a sequence's tokens in their order, and a row depends on where its groups end,
not on who else is in them.
"""

import numpy as np
import torch

from octavo.kernels.cpu.decode import attend_rows
from octavo.kernels.cpu.heads import (
    LOG2_E,
    partial_width,
    resume_head,
    save_head,
    start_head,
)
from octavo.kernels.cpu.jit import jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, give_back, read_i32
from octavo.kernels.cpu.packed import ROWS, TILE, ZERO, add_values, pack_keys, pack_values, score
from octavo.kernels.cpu.paging import AHEAD, check_paged, find_rows
from octavo.kernels.cpu.panels import PANEL_ROWS
from octavo.kernels.cpu.softmax import MINUS_INFINITY, softmax
from octavo.kernels.cpu.vector import FLOAT, format_of, splat, store
from octavo.kernels.prefix_groups import PrefixGroups


@jit
def _attend_shared(
    format,
    query,  # [S, num_heads, head_dim]
    query_strides,  # (sequence, head), bytes
    kv_layer,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    kv_strides,  # (block, K to V, head, token), bytes
    block_tables,  # [S, max_blocks] int32
    table_stride,  # bytes
    groups,  # (members, group_start, blocks, levels), see prefix_groups.py
    partials,  # [S, num_heads, partial_width(width)] float32
    shape,  # (G, num_heads, num_kv_heads, block_size, head_dim)
    item_bytes,
    scale,  # of scores, times log2(e)
):
    num_groups, num_heads, num_kv_heads, block_size, size = shape
    members, group_start, blocks, levels = groups
    heads = num_heads // num_kv_heads
    width = (size + LANES - 1) // LANES * LANES
    kept = 4 * partial_width(width)
    most = 0
    for g in range(num_groups):
        most = max(most, read_i32(group_start, g + 1) - read_i32(group_start, g))
    most = (most * heads + PANEL_ROWS - 1) // PANEL_ROWS * PANEL_ROWS
    room = borrow(4 * (2 * most * width + 2 * TILE * width + ROWS * TILE) + 64)
    queries = (room + 63) // 64 * 64  # [most, width]
    outputs = queries + 4 * most * width  # [most, width]
    keys = outputs + 4 * most * width  # [width, TILE]
    values = keys + 4 * TILE * width  # [TILE, width]
    scores = values + 4 * TILE * width  # [ROWS, TILE]
    highest = np.empty(most, np.float32)
    total = np.empty(most, np.float32)
    padded = np.zeros((LANES + 1, width * item_bytes), np.uint8)
    offsets = np.empty(TILE + (AHEAD + 1) * LANES, np.int64)
    for g in range(num_groups):
        start = read_i32(group_start, g)
        count = (read_i32(group_start, g + 1) - start) * heads
        is_inner = read_i32(levels, g) > 0
        table = block_tables + read_i32(members, start) * table_stride
        begin, end = read_i32(blocks, 2 * g) * block_size, read_i32(blocks, 2 * g + 1) * block_size
        for kv_head in range(num_kv_heads):
            for r in range(count):
                member, h = divmod(r, heads)
                s, h = read_i32(members, start + member), kv_head * heads + h
                source = query + s * query_strides[0] + h * query_strides[1]
                output = outputs + 4 * r * width
                start_head(format, source, queries + 4 * r * width, output, size, scale)
                highest[r] = MINUS_INFINITY
                total[r] = 0.0
                if is_inner:
                    partial = partials + (s * num_heads + h) * kept
                    resume_head(partial, output, highest, total, r, width)
            for i in range(count * width, most * width, LANES):
                store(FLOAT, queries, i, splat(ZERO))
                store(FLOAT, outputs, i, splat(ZERO))
            base = kv_layer + kv_head * kv_strides[2]
            for tile in range(begin, end, TILE):
                num_tokens = min(TILE, end - tile)
                sight = (0, num_tokens)
                find_rows(offsets, table, tile, num_tokens, block_size, kv_strides)
                pack_keys(format, base, offsets, sight, padded, keys, size, width, item_bytes)
                second = base + kv_strides[1]
                pack_values(format, second, offsets, sight, padded, values, size, width, item_bytes)
                for block in range(0, count, ROWS):
                    num_rows = min(ROWS, count - block)
                    first = 4 * block * width
                    score(queries + first, keys, scores, num_rows, width)
                    for r in range(num_rows):
                        row, output = scores + 4 * r * TILE, outputs + first + 4 * r * width
                        softmax(row, 0, num_tokens, TILE, highest, total, block + r, output, width)
                    add_values(scores, values, outputs + first, num_rows, width)
            for r in range(count):
                member, h = divmod(r, heads)
                s, h = read_i32(members, start + member), kv_head * heads + h
                partial = partials + (s * num_heads + h) * kept
                save_head(partial, outputs + 4 * r * width, highest, total, r, width)
    give_back(room)


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
    _attend_shared(
        format_of(query.dtype),
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
