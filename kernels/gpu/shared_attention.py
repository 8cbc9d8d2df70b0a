"""Decode attention in which blocks that several sequences begin with are read once for all.

    grid (group and tile of its rows, KV head, split)     grid (sequence, KV head, split)
    members x heads of the KV head, BLOCK_M rows          decode_attention.py, from shared_lens on
      shared tokens, split over programs                    own tokens, split over programs
                    |                                              |
                    v                                              v
    partials [sequence, head, | level 0: split 0 1 .. | level 1: .. | own: split 0 1 .. |, D]
    log-sum-exps of the same, -inf where nothing is written  --merge-->  out [sequence, head, D]

A group g owns programs group_start[g] / BLOCK_Q + g and those up to the next group's, as sequences
do in prefill_attention.py.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.decode_attention import choose_num_splits, plan_split_attention
from octavo.kernels.gpu.kv_tile import NOTHING_SEEN, attend, load_tile
from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.paged_attention import PagedAttention, Partials
from octavo.kernels.gpu.prefill_attention import find_sequence
from octavo.kernels.gpu.tiles import Gpu, Tile, decode_tile, gpu_of, prefill_tile
from octavo.kernels.prefix_groups import PrefixGroups

CHUNK = 16  # partials that a merge reads at a time


@triton.jit(do_not_specialize=["num_groups", "num_splits", "num_slots", "table_stride"])
def _shared_attention_kernel(
    partial_ptr,  # float32 [S, num_heads, num_slots, head_dim]
    lse_ptr,  # float32 [S, num_heads, num_slots]
    query_ptr,  # [S, num_heads, head_dim]
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # [S, max_blocks] int32
    members_ptr,  # [M] int32
    group_start_ptr,  # [G + 1] int32
    blocks_ptr,  # [G, 2] int32
    levels_ptr,  # [G] int32
    scale_log2,
    num_groups,
    num_splits,
    num_slots,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    program = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    group = find_sequence(group_start_ptr, program, num_groups, BLOCK_Q)
    group_start = tl.load(group_start_ptr + group)
    num_members = tl.load(group_start_ptr + group + 1) - group_start
    first_member = (program - group_start // BLOCK_Q - group) * BLOCK_Q
    begin = tl.load(blocks_ptr + 2 * group) * BLOCK_SIZE
    end = tl.load(blocks_ptr + 2 * group + 1) * BLOCK_SIZE
    num_tiles = (end - begin + BLOCK_N - 1) // BLOCK_N
    per_split = (num_tiles + num_splits - 1) // num_splits
    low = split * per_split
    high = tl.minimum(low + per_split, num_tiles)
    if first_member >= num_members or low >= high:
        return

    lanes = tl.arange(0, BLOCK_M)  # lane = member * GROUP + head
    dims = tl.arange(0, HEAD_DIM_PAD)
    places = first_member + lanes // GROUP
    is_row = (lanes < BLOCK_Q * GROUP) & (places < num_members)
    seqs = tl.load(members_ptr + group_start + places, mask=is_row, other=0).to(tl.int64)
    heads = kv_head * GROUP + lanes % GROUP
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = seqs * query_stride_row + heads * query_stride_head
    query = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    acc = tl.zeros([BLOCK_M, HEAD_DIM_PAD], tl.float32)
    row_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    head_ptr = kv_ptr + kv_head * kv_stride_head
    any_member = tl.load(members_ptr + group_start).to(tl.int64)
    table_ptr = block_tables_ptr + any_member * table_stride
    for tile in range(low, high):
        start = begin + tile * BLOCK_N
        key, value = load_tile(
            head_ptr, table_ptr, start, end, kv_stride_block, kv_stride_value, kv_stride_slot,
            HEAD_DIM, HEAD_DIM_PAD, BLOCK_SIZE, BLOCK_N, True, query.dtype,
        )  # fmt: skip
        scores = tl.dot(query, key, input_precision="ieee")
        seen = start + tl.arange(0, BLOCK_N) < end
        scores = tl.where(seen[None, :], scores, float("-inf"))
        acc, row_max, row_sum = attend(scores, value, acc, row_max, row_sum, scale_log2)

    acc = acc / row_sum[:, None]
    slot = tl.load(levels_ptr + group) * num_splits + split
    rows = (seqs * (tl.num_programs(1) * GROUP) + heads) * num_slots + slot
    tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=is_row)
    tl.store(partial_ptr + rows[:, None] * HEAD_DIM + dims[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["num_slots"])
def _merge_partials_kernel(
    out_ptr,  # [S, num_heads, head_dim]
    partial_ptr,  # float32 [S, num_heads, num_slots, head_dim]
    lse_ptr,  # float32 [S, num_heads, num_slots], -inf where there is no partial
    num_slots,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    dims = tl.arange(0, HEAD_DIM_PAD)
    acc = tl.zeros([HEAD_DIM_PAD], tl.float32)
    top = tl.full((), NOTHING_SEEN, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for low in range(0, num_slots, CHUNK):
        slots = low + tl.arange(0, CHUNK)
        lse = tl.load(
            lse_ptr + row * num_slots + slots, mask=slots < num_slots, other=float("-inf")
        )
        partial = tl.load(
            partial_ptr + (row * num_slots + slots)[:, None] * HEAD_DIM + dims[None, :],
            mask=(lse > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse, 0))
        weight = tl.exp2(lse - new_top)
        decay = tl.exp2(top - new_top)
        acc = acc * decay + tl.sum(partial * weight[:, None], 0)
        total = total * decay + tl.sum(weight, 0)
        top = new_top
    tl.store(out_ptr + row * HEAD_DIM + dims, acc / total, mask=dims < HEAD_DIM)


def _choose_tile(call: PagedAttention, num_members: int, gpu: Gpu) -> Tile:
    """Decode's tile while its rows about hold the largest group, prefill's for larger ones; in
    float32 always decode's, on eight warps: anything else spills registers on sm_80."""
    dtype = call.query.dtype
    small = decode_tile(gpu, call.head_dim_pad, dtype)
    if dtype == torch.float32:
        return replace(small, num_warps=8)
    if num_members * call.group <= 2 * small.block_m:
        return small
    return prefill_tile(gpu, call.head_dim_pad, dtype)


def plan_grouped_decode_attention(
    out: torch.Tensor, call: PagedAttention, groups: PrefixGroups, gpu: Gpu
) -> list[Launch]:
    """The launches of one call: shared tokens, own tokens, the merge."""
    num_seqs, num_heads, head_dim = call.query.shape
    tile = _choose_tile(call, groups.max_members, gpu)
    num_programs = len(groups.members) // (call.block_m(tile) // call.group) + len(groups.levels)
    num_splits = choose_num_splits(
        num_programs * call.num_kv_heads, groups.max_blocks * call.block_size, gpu.num_cores
    )
    own_splits = choose_num_splits(num_seqs * call.num_kv_heads, call.max_tokens, gpu.num_cores)
    first_own = groups.num_levels * num_splits
    partials = Partials.empty(call, first_own + own_splits)
    partials.lse.fill_(float("-inf"))
    shared = Launch(
        kernel=_shared_attention_kernel,
        grid=(num_programs, call.num_kv_heads, num_splits),
        arguments=call.arguments()
        | {
            "partial_ptr": partials.out,
            "lse_ptr": partials.lse,
            "members_ptr": groups.members,
            "group_start_ptr": groups.group_start,
            "blocks_ptr": groups.blocks,
            "levels_ptr": groups.levels,
            "num_groups": len(groups.levels),
            "num_splits": num_splits,
            "num_slots": first_own + own_splits,
        },
        constants=call.constants(tile),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    own_tile = decode_tile(gpu, call.head_dim_pad, call.query.dtype)
    own = plan_split_attention(partials, call, own_splits, own_tile, groups.shared_lens, first_own)
    merge = Launch(
        kernel=_merge_partials_kernel,
        grid=(num_seqs, num_heads),
        arguments={
            "out_ptr": out,
            "partial_ptr": partials.out,
            "lse_ptr": partials.lse,
            "num_slots": first_own + own_splits,
        },
        constants={"HEAD_DIM": head_dim, "HEAD_DIM_PAD": call.head_dim_pad, "CHUNK": CHUNK},
    )
    return [shared, own, merge]


def grouped_decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    groups: PrefixGroups,
    scale: float,
) -> torch.Tensor:
    """See reference.grouped_decode_attention."""
    call = PagedAttention(query, kv_layer, block_tables, seq_lens, scale)
    call.check()
    assert seq_lens.shape == query.shape[:1] == groups.shared_lens.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in plan_grouped_decode_attention(out, call, groups, gpu_of(query.device)):
        launch.run()
    return out
