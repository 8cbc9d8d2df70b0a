"""Rotary position embedding in place: the leading 2R dimensions of every query and key head, halves
paired (NeoX style).

    head: [ first R | second R | rest untouched ]     first'  = first * cos - second * sin
                                                      second' = second * cos + first * sin

One program a token: cos and sin are read once for all heads. Arithmetic in float32.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.launch import Launch


@triton.jit
def _rotate_heads(
    x_ptr,  # [num_heads, head_dim], one token
    stride_head,
    cos,  # [1, HALF_PAD]
    sin,  # [1, HALF_PAD]
    NUM_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
):
    heads = tl.arange(0, HEADS_PAD)[:, None]
    columns = tl.arange(0, HALF_PAD)[None, :]
    mask = (heads < NUM_HEADS) & (columns < HALF)
    first_ptrs = x_ptr + heads * stride_head + columns
    first = tl.load(first_ptrs, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(first_ptrs + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(first_ptrs, first * cos - second * sin, mask=mask)
    tl.store(first_ptrs + HALF, second * cos + first * sin, mask=mask)


@triton.jit
def _rotary_kernel(
    query_ptr,  # [T, num_heads, head_dim]
    key_ptr,  # [T, num_kv_heads, head_dim]
    cos_ptr,  # [T, R] float32
    sin_ptr,  # [T, R] float32
    query_stride_token,
    query_stride_head,
    key_stride_token,
    key_stride_head,
    cos_stride,
    sin_stride,
    NUM_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    KV_HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, HALF_PAD)[None, :]
    cos = tl.load(cos_ptr + token * cos_stride + columns, mask=columns < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * sin_stride + columns, mask=columns < HALF, other=0.0)
    _rotate_heads(
        query_ptr + token * query_stride_token, query_stride_head, cos, sin,
        NUM_HEADS, HEADS_PAD, HALF, HALF_PAD,
    )  # fmt: skip
    _rotate_heads(
        key_ptr + token * key_stride_token, key_stride_head, cos, sin,
        NUM_KV_HEADS, KV_HEADS_PAD, HALF, HALF_PAD,
    )  # fmt: skip


def plan_rotary(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Launch:
    """The launch of one call."""
    num_tokens, num_heads, _ = query.shape
    num_kv_heads, half = key.shape[1], cos.shape[1]
    heads_pad, half_pad = triton.next_power_of_2(num_heads), triton.next_power_of_2(half)
    return Launch(
        kernel=_rotary_kernel,
        grid=(num_tokens,),
        arguments={
            "query_ptr": query,
            "key_ptr": key,
            "cos_ptr": cos,
            "sin_ptr": sin,
            "query_stride_token": query.stride(0),
            "query_stride_head": query.stride(1),
            "key_stride_token": key.stride(0),
            "key_stride_head": key.stride(1),
            "cos_stride": cos.stride(0),
            "sin_stride": sin.stride(0),
        },
        constants={
            "NUM_HEADS": num_heads,
            "HEADS_PAD": heads_pad,
            "NUM_KV_HEADS": num_kv_heads,
            "KV_HEADS_PAD": triton.next_power_of_2(num_kv_heads),
            "HALF": half,
            "HALF_PAD": half_pad,
        },
        num_warps=8 if heads_pad * half_pad > 1024 else 4,
    )


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """See reference.rotary."""
    assert query.shape[0] == key.shape[0] == cos.shape[0], (query.shape, key.shape, cos.shape)
    assert cos.shape == sin.shape and 2 * cos.shape[1] <= query.shape[2], (cos.shape, query.shape)
    assert query.dtype == key.dtype and query.shape[2] == key.shape[2], (query.shape, key.shape)
    assert query.stride(2) == key.stride(2) == cos.stride(1) == sin.stride(1) == 1
    plan_rotary(query, key, cos, sin).run()
