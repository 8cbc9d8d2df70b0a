"""Attention of each sequence's newest token over its paged KV, split over the sequence.

    grid (sequence, KV head, split)                       grid (sequence, head)
    query heads of the KV head, one tile of >= 16 rows
      split 0: tiles 0..3  --> partial [D], log-sum-exp -\\
      split 1: tiles 4..7  --> partial [D], log-sum-exp ---> weighted sum --> out [D]
      split 2: tiles 8..   --> partial [D], log-sum-exp -/

K and V are read once for all query heads that share them. With one split the first kernel writes
`out` itself. Partials and log-sum-exps (base 2) are float32; a split that is left without tiles
writes nothing, and the merge reads only those that had some.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.kv_tile import NOTHING_SEEN, attend, load_tile
from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.paged_attention import PagedAttention, Partials
from octavo.kernels.gpu.tiles import Gpu, Tile, decode_tile, gpu_of

MAX_SPLITS = 128
# Fewer tokens than this are not worth a split of their own; more than that are not left to one
# program, or a single long sequence would keep a full batch waiting.
MIN_SPLIT_TOKENS, MAX_SPLIT_TOKENS = 128, 4096
PROGRAMS_PER_CORE = 4


@triton.jit
def _tile_range(
    begin, end, num_splits, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, MIN: tl.constexpr
):
    """First tile that is seen, one past the last, and how many tiles each split takes."""
    first = begin // BLOCK_N
    if WINDOW > 0:
        first = tl.maximum(end - WINDOW, 0) // BLOCK_N
    last = (end + BLOCK_N - 1) // BLOCK_N
    per_split = tl.maximum((last - first + num_splits - 1) // num_splits, MIN)
    return first, last, per_split


@triton.jit(do_not_specialize=["num_splits", "num_slots", "first_slot", "table_stride"])
def _decode_attention_kernel(
    out_ptr,  # [S, num_heads, head_dim]; SPLIT: float32 [S, num_heads, num_slots, head_dim]
    lse_ptr,  # SPLIT: float32 [S, num_heads, num_slots]
    query_ptr,  # [S, num_heads, head_dim]
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # [S, max_blocks] int32
    seq_lens_ptr,  # [S] int32
    shared_lens_ptr,  # [S] int32; SHARED: tokens that shared_attention.py sees to
    scale_log2,
    num_splits,
    num_slots,
    first_slot,  # of the partials, where those of this kernel begin
    query_stride_row,
    query_stride_head,
    kv_stride_block,
    kv_stride_value,
    kv_stride_head,
    kv_stride_slot,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    end = tl.load(seq_lens_ptr + seq)
    begin = 0
    if SHARED:
        begin = tl.load(shared_lens_ptr + seq)
    first, last, per_split = _tile_range(begin, end, num_splits, WINDOW, BLOCK_N, MIN_TILES)
    low = first + split * per_split
    high = tl.minimum(low + per_split, last)
    if SPLIT and low >= high:
        return

    members = tl.arange(0, BLOCK_M)  # query heads of this KV head, padded to a dot's 16 rows
    dims = tl.arange(0, HEAD_DIM_PAD)
    heads = kv_head * GROUP + members
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr + seq * query_stride_row + heads[:, None] * query_stride_head + dims[None, :],
        mask=inside,
        other=0.0,
    )
    if UPCAST:
        query = query.to(tl.float32)

    acc = tl.zeros([BLOCK_M, HEAD_DIM_PAD], tl.float32)
    row_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    head_ptr = kv_ptr + kv_head * kv_stride_head
    table_ptr = block_tables_ptr + seq * table_stride
    for tile in range(low, high):
        start = tile * BLOCK_N
        key, value = load_tile(
            head_ptr, table_ptr, start, end, kv_stride_block, kv_stride_value, kv_stride_slot,
            HEAD_DIM, HEAD_DIM_PAD, BLOCK_SIZE, BLOCK_N, True, query.dtype,
        )  # fmt: skip
        positions = start + tl.arange(0, BLOCK_N)
        seen = positions < end
        if WINDOW > 0:
            seen &= positions >= end - WINDOW
        if SHARED:
            seen &= positions >= begin
        scores = tl.dot(query, key, input_precision="ieee")
        scores = tl.where(seen[None, :], scores, float("-inf"))
        acc, row_max, row_sum = attend(scores, value, acc, row_max, row_sum, scale_log2)

    row_sum = tl.where(row_sum > 0, row_sum, 1.0)  # an empty sequence gives 0
    acc = acc / row_sum[:, None]
    rows = seq * (tl.num_programs(1) * GROUP) + heads
    if SPLIT:
        rows = rows * num_slots + first_slot + split
        tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=members < GROUP)
    tl.store(out_ptr + rows[:, None] * HEAD_DIM + dims[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_splits_kernel(
    out_ptr,  # [S, num_heads, head_dim]
    partial_ptr,  # float32 [S, num_heads, num_splits, head_dim]
    lse_ptr,  # float32 [S, num_heads, num_splits]
    seq_lens_ptr,  # [S] int32
    num_splits,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    row = seq * tl.num_programs(1) + tl.program_id(1)
    end = tl.load(seq_lens_ptr + seq)
    first, last, per_split = _tile_range(0, end, num_splits, WINDOW, BLOCK_N, MIN_TILES)
    used = (last - first + per_split - 1) // per_split

    splits = tl.arange(0, MAX_SPLITS)
    lse_row_ptr = lse_ptr + row * num_splits
    lse = tl.load(lse_row_ptr + splits, mask=splits < used, other=float("-inf"))
    top = tl.maximum(tl.max(lse, 0), NOTHING_SEEN)
    total = tl.sum(tl.exp2(lse - top), 0)

    dims = tl.arange(0, HEAD_DIM_PAD)
    acc = tl.zeros([HEAD_DIM_PAD], tl.float32)
    for low in range(0, used, CHUNK):
        chunk = low + tl.arange(0, CHUNK)
        weight = tl.exp2(tl.load(lse_row_ptr + chunk, mask=chunk < used, other=float("-inf")) - top)
        partial = tl.load(
            partial_ptr + (row * num_splits + chunk)[:, None] * HEAD_DIM + dims[None, :],
            mask=(chunk < used)[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        acc += tl.sum(partial * weight[:, None], 0)
    # The largest weight is 1, so total < 1 means that no split had tiles: out is 0.
    acc = acc / tl.maximum(total, 1.0)
    tl.store(out_ptr + row * HEAD_DIM + dims, acc, mask=dims < HEAD_DIM)


def choose_num_splits(num_programs: int, max_tokens: int, num_cores: int) -> int:
    """Into how many parts each sequence is cut: enough programs to fill the device in one wave,
    enough that none walks more than MAX_SPLIT_TOKENS, none of fewer than MIN_SPLIT_TOKENS.

    num_programs: sequences times KV heads; max_tokens: the longest that a sequence may be.
    """
    wanted = max(PROGRAMS_PER_CORE * num_cores // num_programs, -(-max_tokens // MAX_SPLIT_TOKENS))
    return max(1, min(wanted, max_tokens // MIN_SPLIT_TOKENS, MAX_SPLITS))


def decode_splits(call: PagedAttention, gpu: Gpu) -> int:
    """By the shapes of queries and tables alone, so that a captured graph serves every length up to
    the table's width."""
    max_tokens = call.max_tokens
    if call.sliding_window > 0:
        max_tokens = min(max_tokens, call.sliding_window)
    num_programs = max(len(call.query), 1) * call.num_kv_heads
    return choose_num_splits(num_programs, max_tokens, gpu.num_cores)


def plan_decode_attention(
    out: torch.Tensor, call: PagedAttention, tile: Tile, num_splits: int
) -> list[Launch]:
    """The launches of one call: one kernel, or the split kernel and the merge."""
    num_seqs, num_heads, _ = call.query.shape
    if num_splits == 1:
        return [plan_split_attention(Partials(out, out), call, 1, tile)]
    partials = Partials.empty(call, num_splits)
    attention = plan_split_attention(partials, call, num_splits, tile)
    constants = ("HEAD_DIM", "HEAD_DIM_PAD", "WINDOW", "BLOCK_N", "MIN_TILES")
    merge = Launch(
        kernel=_merge_splits_kernel,
        grid=(num_seqs, num_heads),
        arguments={
            "out_ptr": out,
            "partial_ptr": partials.out,
            "lse_ptr": partials.lse,
            "seq_lens_ptr": call.seq_lens,
            "num_splits": num_splits,
        },
        constants={name: attention.constants[name] for name in constants}
        | {"MAX_SPLITS": MAX_SPLITS, "CHUNK": 8},
    )
    return [attention, merge]


def plan_split_attention(
    partials: Partials,
    call: PagedAttention,
    num_splits: int,
    tile: Tile,
    shared_lens: torch.Tensor | None = None,
    first_slot: int = 0,
) -> Launch:
    """Each sequence's tokens from shared_lens on, as partials from first_slot on.

    With one split and no shared_lens, `partials.out` is the result itself.
    """
    is_partial = num_splits > 1 or shared_lens is not None
    return Launch(
        kernel=_decode_attention_kernel,
        grid=(call.query.shape[0], call.num_kv_heads, num_splits),
        arguments=call.arguments()
        | {
            "out_ptr": partials.out,
            "lse_ptr": partials.lse,
            "seq_lens_ptr": call.seq_lens,
            "shared_lens_ptr": call.seq_lens if shared_lens is None else shared_lens,
            "num_splits": num_splits,
            "num_slots": partials.lse.shape[2],
            "first_slot": first_slot,
        },
        constants=call.constants(tile)
        | {
            "WINDOW": call.sliding_window,
            "MIN_TILES": max(1, MIN_SPLIT_TOKENS // tile.block_n) if num_splits > 1 else 1,
            "SPLIT": is_partial,
            "SHARED": shared_lens is not None,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """See reference.decode_attention."""
    call = PagedAttention(query, kv_layer, block_tables, seq_lens, scale, sliding_window)
    call.check()
    assert seq_lens.shape == query.shape[:1], (seq_lens.shape, query.shape)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    gpu = gpu_of(query.device)
    tile = decode_tile(gpu, call.head_dim_pad, query.dtype)
    for launch in plan_decode_attention(out, call, tile, decode_splits(call, gpu)):
        launch.run()
    return out
