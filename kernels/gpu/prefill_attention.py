"""Causal attention of prompt chunks over paged KV: FlashAttention tiles, gathered block by block.

    cached prefix          chunk
    |----------------------|------|      position of row j: seq_len - num_rows + j
    [ every row sees these ][ mask ]     tiles of BLOCK_N positions
                     rows: BLOCK_Q tokens x GROUP heads, packed into BLOCK_M, so that K and V are
                     read once for all query heads that share them

A flat grid: sequence i owns programs query_start[i] / BLOCK_Q + i and those up to the next
sequence's, at least as many as its rows need; a program finds its sequence by bisection, and the
host never asks the device for a length. Late tiles see most positions and start first.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.kv_tile import NOTHING_SEEN, attend, load_tile
from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.paged_attention import PagedAttention
from octavo.kernels.gpu.tiles import Tile, gpu_of, prefill_tile


@triton.jit
def find_sequence(query_start_ptr, program, num_seqs, BLOCK_Q: tl.constexpr):
    """The last sequence whose first program is not after this one."""
    low = tl.full((), 0, tl.int32)
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first_program = tl.load(query_start_ptr + middle) // BLOCK_Q + middle
        if first_program <= program:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["num_seqs", "table_stride"])
def _prefill_attention_kernel(
    out_ptr,  # [T, num_heads, head_dim]
    query_ptr,  # [T, num_heads, head_dim]
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_tables_ptr,  # [S, max_blocks] int32
    seq_lens_ptr,  # [S] int32
    query_start_ptr,  # [S + 1] int32
    scale_log2,
    num_seqs,
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
    UPCAST: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    seq = find_sequence(query_start_ptr, program, num_seqs, BLOCK_Q)
    chunk_start = tl.load(query_start_ptr + seq)
    num_rows = tl.load(query_start_ptr + seq + 1) - chunk_start
    first_row = (program - chunk_start // BLOCK_Q - seq) * BLOCK_Q
    if first_row >= num_rows:
        return
    seq_len = tl.load(seq_lens_ptr + seq)
    first_position = seq_len - num_rows + first_row

    lanes = tl.arange(0, BLOCK_M)  # lane = token * GROUP + head
    dims = tl.arange(0, HEAD_DIM_PAD)
    rows = first_row + lanes // GROUP
    own = seq_len - num_rows + rows  # [M] each row's own position
    tokens = (chunk_start + rows).to(tl.int64)
    heads = kv_head * GROUP + lanes % GROUP
    is_row = (lanes < BLOCK_Q * GROUP) & (rows < num_rows)
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = tokens * query_stride_row + heads * query_stride_head
    query = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    acc = tl.zeros([BLOCK_M, HEAD_DIM_PAD], tl.float32)
    row_max = tl.full([BLOCK_M], NOTHING_SEEN, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    head_ptr = kv_ptr + kv_head * kv_stride_head
    table_ptr = block_tables_ptr + seq.to(tl.int64) * table_stride
    end = tl.minimum(first_position + BLOCK_Q, seq_len)
    if WINDOW > 0:  # window edges cross every tile: all are masked
        masked_from = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        masked_from = (first_position + 1) // BLOCK_N * BLOCK_N
        for start in range(0, masked_from, BLOCK_N):
            key, value = load_tile(
                head_ptr, table_ptr, start, end, kv_stride_block, kv_stride_value, kv_stride_slot,
                HEAD_DIM, HEAD_DIM_PAD, BLOCK_SIZE, BLOCK_N, False, query.dtype,
            )  # fmt: skip
            scores = tl.dot(query, key, input_precision="ieee")
            acc, row_max, row_sum = attend(scores, value, acc, row_max, row_sum, scale_log2)
    for start in range(masked_from, end, BLOCK_N):
        key, value = load_tile(
            head_ptr, table_ptr, start, end, kv_stride_block, kv_stride_value, kv_stride_slot,
            HEAD_DIM, HEAD_DIM_PAD, BLOCK_SIZE, BLOCK_N, True, query.dtype,
        )  # fmt: skip
        positions = start + tl.arange(0, BLOCK_N)
        seen = positions[None, :] <= own[:, None]
        if WINDOW > 0:
            seen &= positions[None, :] > own[:, None] - WINDOW
        scores = tl.where(seen, tl.dot(query, key, input_precision="ieee"), float("-inf"))
        acc, row_max, row_sum = attend(scores, value, acc, row_max, row_sum, scale_log2)

    # Rows of padding may have seen nothing; they are not stored, but must not divide by 0.
    acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    out_rows = (tokens * (tl.num_programs(1) * GROUP) + heads) * HEAD_DIM
    tl.store(out_ptr + out_rows[:, None] + dims[None, :], acc, mask=inside)


def plan_prefill_attention(
    out: torch.Tensor, call: PagedAttention, query_start: torch.Tensor, tile: Tile
) -> Launch:
    """The launch of one call."""
    num_tokens = call.query.shape[0]
    num_programs = num_tokens // (call.block_m(tile) // call.group) + call.num_seqs
    return Launch(
        kernel=_prefill_attention_kernel,
        grid=(num_programs if num_tokens else 0, call.num_kv_heads),
        arguments=call.arguments()
        | {
            "out_ptr": out,
            "seq_lens_ptr": call.seq_lens,
            "query_start_ptr": query_start,
            "num_seqs": call.num_seqs,
        },
        constants=call.constants(tile) | {"WINDOW": call.sliding_window},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def prefill_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """See reference.prefill_attention. query_start[0] must be 0."""
    call = PagedAttention(query, kv_layer, block_tables, seq_lens, scale, sliding_window)
    call.check()
    assert query_start.dtype == torch.int32 and query_start.is_contiguous()
    assert query_start.shape[0] == seq_lens.shape[0] + 1, (query_start.shape, seq_lens.shape)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tile = prefill_tile(gpu_of(query.device), call.head_dim_pad, query.dtype)
    plan_prefill_attention(out, call, query_start, tile).run()
    return out
