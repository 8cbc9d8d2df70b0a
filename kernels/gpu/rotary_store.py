"""One pass over a step's projection: norm of query and key heads (Qwen3), rotation, KV store.

    query [T, num_heads, head_dim]     --norm--> rotate --> in place
    key   [T, num_kv_heads, head_dim]  --norm--> rotate --+
    value [T, num_kv_heads, head_dim]  -------------------+--slot_mapping[t]--> block slot / size,
                                                                                offset slot % size

One program a token and KV head, with the query heads that share it. The leading 2R dimensions of a
head turn, halves paired (NeoX style); arithmetic in float32, rounded where the separate steps would
round. A negative slot is not written. Block ids are int64: a pool passes 2^31 elements early.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.kv_tile import FP8, FP8_MAX
from octavo.kernels.gpu.launch import INTERPRETED, Launch

# Triton's interpreter loses the carry when it rounds to fp8: 0.49 becomes 0.25.
ROUND_FIRST = tl.constexpr(INTERPRETED)


@triton.jit
def _load_part(
    x_ptr,  # [heads, head_dim]
    stride_head,
    start,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """Dimensions start .. start + WIDTH of all heads, float32 [HEADS_PAD, WIDTH_PAD]."""
    heads = tl.arange(0, HEADS_PAD)[:, None]
    columns = tl.arange(0, WIDTH_PAD)[None, :]
    mask = (heads < HEADS) & (columns < WIDTH)
    x = tl.load(x_ptr + heads * stride_head + start + columns, mask=mask, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _store_part(
    out_ptr,  # [heads, head_dim]
    stride_head,
    start,
    x,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    heads = tl.arange(0, HEADS_PAD)[:, None]
    columns = tl.arange(0, WIDTH_PAD)[None, :]
    mask = (heads < HEADS) & (columns < WIDTH)
    if IS_FP8:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -FP8_MAX), FP8_MAX)
        if ROUND_FIRST:
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # three bits, ties to even
            tiny = (x + 24_576.0) - 24_576.0  # multiples of 2^-9, below the normal numbers
            x = tl.where(tl.abs(x) < 0.015625, tiny, bits.to(tl.float32, bitcast=True))
    x = x.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + heads * stride_head + start + columns, x, mask=mask)


@triton.jit
def _scaled(
    x, scale, weight_ptr, start, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, DTYPE: tl.constexpr
):
    """One part of a head, normed: rounded before the weight and after it."""
    columns = tl.arange(0, WIDTH_PAD)
    weight = tl.load(weight_ptr + start + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    normed = (x * scale[:, None]).to(DTYPE).to(tl.float32)
    return (normed * weight[None, :]).to(DTYPE).to(tl.float32)


@triton.jit
def _turn_heads(
    x_ptr,  # [heads, head_dim]
    stride_head,
    out_ptr,  # [heads, head_dim]
    out_stride_head,
    norm_ptr,  # [head_dim]
    cos,  # [1, HALF_PAD]
    sin,  # [1, HALF_PAD]
    eps,
    is_stored,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    NORM: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    REST: tl.constexpr = HEAD_DIM - 2 * HALF
    first = _load_part(x_ptr, stride_head, 0, HEADS, HEADS_PAD, HALF, HALF_PAD)
    second = _load_part(x_ptr, stride_head, HALF, HEADS, HEADS_PAD, HALF, HALF_PAD)
    rest = first
    if REST > 0:
        rest = _load_part(x_ptr, stride_head, 2 * HALF, HEADS, HEADS_PAD, REST, REST_PAD)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if REST > 0:
            squares += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)
        first = _scaled(first, scale, norm_ptr, 0, HALF, HALF_PAD, DTYPE)
        second = _scaled(second, scale, norm_ptr, HALF, HALF, HALF_PAD, DTYPE)
        if REST > 0:
            rest = _scaled(rest, scale, norm_ptr, 2 * HALF, REST, REST_PAD, DTYPE)
    if is_stored:
        turned = (first * cos - second * sin).to(DTYPE)
        _store_part(out_ptr, out_stride_head, 0, turned, HEADS, HEADS_PAD, HALF, HALF_PAD, IS_FP8)
        turned = (second * cos + first * sin).to(DTYPE)
        _store_part(
            out_ptr, out_stride_head, HALF, turned, HEADS, HEADS_PAD, HALF, HALF_PAD, IS_FP8
        )
        if REST > 0:
            rest = rest.to(DTYPE)
            _store_part(
                out_ptr, out_stride_head, 2 * HALF, rest, HEADS, HEADS_PAD, REST, REST_PAD, IS_FP8
            )


@triton.jit
def _rotary_store_kernel(
    query_ptr,  # [T, num_heads, head_dim]
    key_ptr,  # [T, num_kv_heads, head_dim]
    value_ptr,  # [T, num_kv_heads, head_dim]
    cos_ptr,  # [T, R] float32
    sin_ptr,  # [T, R] float32
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    slot_mapping_ptr,  # [T] int64
    query_norm_ptr,  # NORM: [head_dim]
    key_norm_ptr,  # NORM: [head_dim]
    eps,
    query_stride_token,
    query_stride_head,
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    cos_stride,
    sin_stride,
    kv_stride_block,
    kv_stride_value,
    kv_stride_head,
    kv_stride_slot,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    columns = tl.arange(0, HALF_PAD)[None, :]
    cos = tl.load(cos_ptr + token * cos_stride + columns, mask=columns < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * sin_stride + columns, mask=columns < HALF, other=0.0)
    heads_ptr = query_ptr + token * query_stride_token + kv_head * GROUP * query_stride_head
    _turn_heads(
        heads_ptr, query_stride_head, heads_ptr, query_stride_head, query_norm_ptr, cos, sin, eps,
        True, GROUP, GROUP_PAD, HEAD_DIM, HALF, HALF_PAD, REST_PAD, NORM, False,
    )  # fmt: skip
    target = slot // BLOCK_SIZE * kv_stride_block + slot % BLOCK_SIZE * kv_stride_slot
    target_ptr = kv_ptr + target + kv_head * kv_stride_head
    _turn_heads(
        key_ptr + token * key_stride_token + kv_head * key_stride_head, 0, target_ptr, 0,
        key_norm_ptr, cos, sin, eps, slot >= 0, 1, 1, HEAD_DIM, HALF, HALF_PAD, REST_PAD, NORM,
        IS_FP8,
    )  # fmt: skip
    if slot >= 0:
        source_ptr = value_ptr + token * value_stride_token + kv_head * value_stride_head
        value = _load_part(source_ptr, 0, 0, 1, 1, HEAD_DIM, HEAD_DIM_PAD)
        _store_part(target_ptr + kv_stride_value, 0, 0, value, 1, 1, HEAD_DIM, HEAD_DIM_PAD, IS_FP8)


def plan_rotary_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_layer: torch.Tensor,
    slot_mapping: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> Launch:
    """The launch of one call."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, half = key.shape[1], cos.shape[1]
    group_pad = triton.next_power_of_2(num_heads // num_kv_heads)
    half_pad, rest = triton.next_power_of_2(half), head_dim - 2 * half
    query_norm, key_norm = (query, query) if norms is None else norms
    return Launch(
        kernel=_rotary_store_kernel,
        grid=(num_tokens, num_kv_heads),
        arguments={
            "query_ptr": query,
            "key_ptr": key,
            "value_ptr": value,
            "cos_ptr": cos,
            "sin_ptr": sin,
            "kv_ptr": kv_layer,
            "slot_mapping_ptr": slot_mapping,
            "query_norm_ptr": query_norm,
            "key_norm_ptr": key_norm,
            "eps": eps,
            "query_stride_token": query.stride(0),
            "query_stride_head": query.stride(1),
            "key_stride_token": key.stride(0),
            "key_stride_head": key.stride(1),
            "value_stride_token": value.stride(0),
            "value_stride_head": value.stride(1),
            "cos_stride": cos.stride(0),
            "sin_stride": sin.stride(0),
            "kv_stride_block": kv_layer.stride(0),
            "kv_stride_value": kv_layer.stride(1),
            "kv_stride_head": kv_layer.stride(2),
            "kv_stride_slot": kv_layer.stride(3),
        },
        constants={
            "GROUP": num_heads // num_kv_heads,
            "GROUP_PAD": group_pad,
            "HEAD_DIM": head_dim,
            "HEAD_DIM_PAD": triton.next_power_of_2(head_dim),
            "HALF": half,
            "HALF_PAD": half_pad,
            "REST_PAD": triton.next_power_of_2(max(rest, 1)),
            "BLOCK_SIZE": kv_layer.shape[3],
            "NORM": norms is not None,
            "IS_FP8": kv_layer.dtype == FP8,
        },
        # About eight numbers a thread in each half of the query heads.
        num_warps=max(1, min(8, group_pad * half_pad // 256)),
    )


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_layer: torch.Tensor,
    slot_mapping: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See reference.rotary_store_kv; the result is `query`, and `key` is left as it was."""
    head_dim, kv_dtype = query.shape[2], kv_layer.dtype
    assert query.shape[0] == key.shape[0] == cos.shape[0], (query.shape, key.shape, cos.shape)
    assert cos.shape == sin.shape and 2 * cos.shape[1] <= head_dim, (cos.shape, query.shape)
    assert query.shape[1] % key.shape[1] == 0, (query.shape, key.shape)
    assert key.shape == value.shape and key.shape[2] == head_dim, (key.shape, value.shape)
    assert kv_layer.shape[1:3] == (2, key.shape[1]), (kv_layer.shape, key.shape)
    assert kv_layer.shape[4] == head_dim, (kv_layer.shape, key.shape)
    assert query.dtype == key.dtype == value.dtype, (query.dtype, key.dtype, value.dtype)
    assert kv_dtype in (query.dtype, FP8), (kv_dtype, query.dtype)
    assert query.stride(2) == key.stride(2) == value.stride(2) == kv_layer.stride(4) == 1
    assert cos.stride(1) == sin.stride(1) == 1 and cos.dtype == sin.dtype == torch.float32
    assert slot_mapping.dtype == torch.int64 and slot_mapping.is_contiguous()
    assert slot_mapping.shape == key.shape[:1], (slot_mapping.shape, key.shape)
    for norm in norms or ():
        assert norm.shape == (head_dim,) and norm.dtype == query.dtype, (norm.shape, norm.dtype)
    plan_rotary_store(query, key, value, cos, sin, kv_layer, slot_mapping, norms, eps).run()
    return query
