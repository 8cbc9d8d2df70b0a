"""What both attention kernels do with one tile of paged KV: gather it, and fold it into a running
softmax (FlashAttention's recurrence in base 2).

    positions start .. start + BLOCK_N            block table [.., 7, 2, 9, ..]
    |--- block 7 ---|--- block 2 ---|--- ...  ->  rows of kv_layer -> key [D, N], value [N, D]

    scores = query . key;  m' = max(m, scores);  w = 2^(scores - m');  a = 2^(m - m')
    sum = a * sum + w;     acc = a * acc + w . value

Scores are scaled by scale * log2(e), so that 2^x stands for e^x. Everything is float32.
"""

import torch
import triton
import triton.language as tl

FP8 = torch.float8_e4m3fn  # of a cache, never of a query
FP8_MAX = tl.constexpr(448.0)

# The running maximum of a row that has seen nothing: finite, so that subtracting a masked score
# (-inf) from it gives a weight of 0 and never NaN.
NOTHING_SEEN = tl.constexpr(-1.0e30)


@triton.jit
def load_tile(
    kv_ptr,  # [num_blocks, 2, block_size, head_dim], one head of one layer's view
    table_ptr,  # [max_blocks] int32, this sequence's row
    start,  # first position, a multiple of BLOCK_N
    end,  # positions from here on are not loaded (MASKED)
    stride_block,
    stride_value,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Returns key [HEAD_DIM_PAD, BLOCK_N] and value [BLOCK_N, HEAD_DIM_PAD] as DTYPE; padding
    is 0."""
    dims = tl.arange(0, HEAD_DIM_PAD)
    lanes = tl.arange(0, BLOCK_N)
    if BLOCK_SIZE % BLOCK_N == 0:  # the tile lies within one block: one table entry
        block_id = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
        rows = block_id * stride_block + (start % BLOCK_SIZE + lanes) * stride_slot
    else:
        positions = start + lanes
        if MASKED:
            block_ids = tl.load(table_ptr + positions // BLOCK_SIZE, mask=positions < end, other=0)
        else:
            block_ids = tl.load(table_ptr + positions // BLOCK_SIZE)
        rows = block_ids.to(tl.int64) * stride_block + (positions % BLOCK_SIZE) * stride_slot
    key_ptrs = kv_ptr + rows[None, :] + dims[:, None]
    value_ptrs = kv_ptr + stride_value + rows[:, None] + dims[None, :]
    # Slots past `end` may hold anything, NaN too, and 0 * NaN is NaN: V is masked like K.
    if MASKED:
        used = start + lanes < end
        key = tl.load(key_ptrs, mask=used[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
        value = tl.load(value_ptrs, mask=used[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM != HEAD_DIM_PAD:
        key = tl.load(key_ptrs, mask=(dims < HEAD_DIM)[:, None], other=0.0)
        value = tl.load(value_ptrs, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        key = tl.load(key_ptrs)
        value = tl.load(value_ptrs)
    return key.to(DTYPE), value.to(DTYPE)


@triton.jit
def attend(
    scores,  # [M, N] float32, unscaled, -inf where masked
    value,  # [N, D]
    acc,  # [M, D] float32
    row_max,  # [M] float32, base 2
    row_sum,  # [M] float32
    scale_log2,
):
    """Fold one tile into the running softmax; returns acc, row_max, row_sum."""
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
    weights = tl.exp2(scores * scale_log2 - new_max[:, None])
    decay = tl.exp2(row_max - new_max)
    row_sum = row_sum * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None]
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return acc, new_max, row_sum
