"""Paged attention of one query row per sequence (PagedAttention, SOSP'23, 4.1).

    for each sequence, for each segment of at most 256 tokens
      K pass   for each tile of 16 tokens, each KV head: widen K to float32 once, score it against
               all query heads that share it
      softmax  of each query head's scores; what came before is rescaled to the new maximum
      V pass   as the K pass: weighted sum of V into the output

Rows are found through the block table, and fetched a tile ahead of their use. Segments start at
the first token in sight and are taken in order: a sequence's result depends on nothing but that
sequence, nor on which thread computes it. A tile past the end repeats the last row under a weight
of zero: slots that hold no token are never read. A sequence may resume from its first tokens'
softmax, computed by shared.py.
"""

import torch

from octavo.kernels.cpu.heads import (
    LOG2_E,
    copy_head,
    head_width,
    load_query,
    start_head,
    store_head,
)
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, float_of, give_back, read_i32, unpacked
from octavo.kernels.cpu.paging import begin_padded, check_paged, fetch_rows, find_rows, take_rows
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.softmax import softmax
from octavo.kernels.cpu.team import float_bits, kernel_per_format, run
from octavo.kernels.cpu.tiles import MAX_HEADS, add_weighted_rows, arrange, restore, score_rows
from octavo.kernels.cpu.vector import FLOAT, load, store

SEGMENT = 256  # tokens
AHEAD = LANES  # tokens whose rows are fetched before their use, one KV head at a time
FEW_SEQUENCES = 8  # below this each KV head is an item of its own
CHUNK_TOKENS = 512  # about what is worth a hand-over


@inlined
def _load_head(format, source, query, output, partial, size, width, scale):
    """A query, and what is known of its softmax (partial; 0 for nothing)."""
    load_query(format, source, query, size, scale)
    for i in range(0, width, LANES):
        store(FLOAT, query, i, arrange(format, load(FLOAT, query, i)))
    if partial == 0:
        start_head(output, width)
    else:
        copy_head(output, partial, width)
        for i in range(0, width, LANES):
            store(FLOAT, output, i, arrange(format, load(FLOAT, output, i)))


@inlined
def _finish_head(format, output, width, target, size):
    for i in range(0, width, LANES):
        store(FLOAT, output, i, restore(format, load(FLOAT, output, i)))
    store_head(format, output, width, target, size)


@inlined
def _span(seq_lens, shared_lens, window, s):
    """(first token to be attended to, one past the last)"""
    length = read_i32(seq_lens, s)
    first = read_i32(shared_lens, s) if shared_lens != 0 else 0
    return max(first, length - window) if window > 0 else first, length


@inlined
def _find_after(item, last_item, parts, segment, lists, layer, offsets):
    """Find the rows of the at most AHEAD tokens after a segment, in its item or in the next one.

    segment: (K's address, block table, first token after it, the sequence's last + 1). Returns (K's
    address, number of tokens).
    """
    base, table, first, end = segment
    block_tables, table_stride, seq_lens, shared_lens, window = lists
    kv_layer, kv_strides, block_size = layer
    if first == end and item + 1 < last_item:
        s, part = divmod(item + 1, parts)
        base = kv_layer + part * kv_strides[2]
        table = block_tables + s * table_stride
        first, end = _span(seq_lens, shared_lens, window, s)
    count = min(end - first, AHEAD)
    if count > 0:
        find_rows(offsets, table, first, count, block_size, kv_strides)
    return base, count


@inlined
def _ahead(place, offsets, position, then_place, then_offsets, end, then_end):
    """(address, offsets) of the tile AHEAD of the one at `position`, or of those that come then."""
    ahead = position + AHEAD
    if ahead < end:
        return place, offsets + 8 * ahead
    if ahead - end < then_end:
        return then_place, then_offsets + 8 * (ahead - end)
    return place, offsets + 8 * position  # these again: nothing to wait for


@inlined
def _attend_segment(format, base, kv_strides, offsets, count, then, room, shape):
    """Fold `count` tokens, whose rows are at base + offsets, into the heads of some KV heads.

    then: (base, offsets, count) of the tokens after them, of which the first AHEAD are fetched.
    """
    queries, outputs, scores, padded = room
    num_kv, group, size, width, item_bytes = shape
    then_base, then_offsets, then_count = then
    row_bytes, padded_bytes = size * item_bytes, width * item_bytes
    stride, line = 4 * head_width(width), 4 * SEGMENT
    parts = (group + MAX_HEADS - 1) // MAX_HEADS
    end = (count + LANES - 1) // LANES * LANES
    values = base + kv_strides[1]
    for position in range(0, count, LANES):
        for kv in range(num_kv):
            place, after = base + kv * kv_strides[2], values + kv * kv_strides[2]
            ahead = _ahead(place, offsets, position, after, offsets, end, end)
            rows = take_rows(place, offsets, position, padded, row_bytes, padded_bytes)
            for part in range(parts):
                h = kv * group + group * part // parts
                heads = kv * group + group * (part + 1) // parts - h
                query, target = queries + 4 * h * width, scores + h * line + 4 * position
                score_rows(format, query, rows, ahead, width, heads, target, line)
    for h in range(num_kv * group):
        softmax(scores + h * line, 0, count, end, outputs + h * stride, width)
    for position in range(0, count, LANES):
        for kv in range(num_kv):
            place, after = values + kv * kv_strides[2], then_base + kv * kv_strides[2]
            ahead = _ahead(place, offsets, position, after, then_offsets, end, then_count)
            rows = take_rows(place, offsets, position, padded, row_bytes, padded_bytes)
            for part in range(parts):
                h = kv * group + group * part // parts
                heads = kv * group + group * (part + 1) // parts - h
                weights = scores + h * line + 4 * position
                output = outputs + h * stride
                add_weighted_rows(format, output, stride, rows, ahead, width, heads, weights, line)


@kernel_per_format
def _decode(format):
    def decode(args, first_item, last_item):
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
            seq_lens,  # [S] int32
            out,  # [S, num_heads, head_dim], contiguous
            num_heads,
            num_kv_heads,
            block_size,
            size,  # head_dim
            item_bytes,
            scale,  # of scores, times log2(e)
            window,  # sliding window; 0 for none
            shared_lens,  # [S] int32: tokens that are in `partials` already; 0 for none
            partials,  # [S, num_heads, head_width(width)] float32 (heads.py); 0 for none
            parts,  # items of a sequence: 1, or one for each KV head
        ) = unpacked(args, 22)
        scale = float_of(scale)
        group = num_heads // num_kv_heads
        width = (size + LANES - 1) // LANES * LANES
        stride = 4 * head_width(width)
        num_kv = num_kv_heads // parts  # of an item
        num_rows = num_kv * group
        num_floats = num_rows * (width + head_width(width) + SEGMENT) + LANES * width
        borrowed = borrow(4 * num_floats + 8 * (LANES + SEGMENT + AHEAD) + 64)
        queries = (borrowed + 63) // 64 * 64  # [num_kv, group, width]
        outputs = queries + 4 * num_rows * width  # [num_kv, group, head_width]
        scores = outputs + num_rows * stride  # [num_kv, group, SEGMENT]
        offsets = scores + 4 * num_rows * SEGMENT  # [SEGMENT] int64
        then_offsets = offsets + 8 * SEGMENT  # [AHEAD] int64
        padded = 0
        if size < width:
            padded = then_offsets + 8 * AHEAD
            begin_padded(padded, width, item_bytes)
        kv_strides = (kv_block, kv_pair, kv_head, kv_token)
        room = (queries, outputs, scores, padded)
        lists = (block_tables, table_stride, seq_lens, shared_lens, window)
        layer = (kv_layer, kv_strides, block_size)
        for item in range(first_item, last_item):
            s, part = divmod(item, parts)
            base = kv_layer + part * kv_head
            first, length = _span(seq_lens, shared_lens, window, s)
            table = block_tables + s * table_stride
            for j in range(num_rows):
                h = part * group + j
                row, output = queries + 4 * j * width, outputs + j * stride
                source = query + s * query_seq + h * query_head
                partial = 0
                if shared_lens != 0 and read_i32(shared_lens, s) > 0:
                    partial = partials + (s * num_heads + h) * stride
                _load_head(format, source, row, output, partial, size, width, scale)
            for segment in range(first, length, SEGMENT):
                count = min(SEGMENT, length - segment)
                find_rows(offsets, table, segment, count, block_size, kv_strides)
                if item == first_item and segment == first:
                    for position in range(0, min(count, AHEAD), LANES):
                        for kv in range(num_kv):
                            place = base + kv * kv_head
                            fetch_rows(place, offsets, position, size * item_bytes)
                after = base, table, segment + count, length
                then_base, then_count = _find_after(
                    item, last_item, parts, after, lists, layer, then_offsets
                )
                _attend_segment(
                    format,
                    base,
                    kv_strides,
                    offsets,
                    count,
                    (then_base, then_offsets, then_count),
                    room,
                    (num_kv, group, size, width, item_bytes),
                )
            for j in range(num_rows):
                target = out + (s * num_heads + part * group + j) * size * item_bytes
                _finish_head(format, outputs + j * stride, width, target, size)
        give_back(borrowed)

    return decode


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
    out = empty(tuple(query.shape), query.dtype)
    query_seq, query_head, _ = query.stride()
    parts = num_kv_heads if num_seqs < FEW_SEQUENCES else 1
    num_items = num_seqs * parts
    run(
        _decode(query.dtype),
        (
            query.data_ptr(),
            query_seq * item,
            query_head * item,
            kv_layer.data_ptr(),
            *(stride * item for stride in kv_layer.stride()[:4]),
            block_tables.data_ptr(),
            block_tables.stride(0) * 4,
            seq_lens.data_ptr(),
            out.data_ptr(),
            num_heads,
            num_kv_heads,
            block_size,
            head_dim,
            item,
            float_bits(scale * LOG2_E),
            sliding_window,
            0 if shared_lens is None else shared_lens.data_ptr(),
            0 if partials is None else partials.data_ptr(),
            parts,
        ),
        num_items,
        CHUNK_TOKENS * parts // block_size,
        max(block_tables.shape[1], 1),
    )
    return out
