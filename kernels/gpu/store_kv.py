"""Write a step's keys and values into their slots of the paged pool.

    key, value [T, num_kv_heads, head_dim] --slot_mapping[t]--> block slot / block_size,
                                                                offset slot % block_size

One program a token; a negative slot is skipped. The pool is written through its strides and never
reshaped, which would copy it. Block ids are int64: a pool passes 2^31 elements early.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.launch import Launch


@triton.jit
def _store_kv_kernel(
    key_ptr,  # [T, num_kv_heads, head_dim]
    value_ptr,  # [T, num_kv_heads, head_dim]
    kv_ptr,  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    slot_mapping_ptr,  # [T] int64
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    kv_stride_block,
    kv_stride_value,
    kv_stride_head,
    kv_stride_slot,
    NUM_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    target = slot // BLOCK_SIZE * kv_stride_block + slot % BLOCK_SIZE * kv_stride_slot
    heads = tl.arange(0, HEADS_PAD)[:, None].to(tl.int64)
    dims = tl.arange(0, HEAD_DIM_PAD)[None, :]
    mask = (heads < NUM_HEADS) & (dims < HEAD_DIM)
    targets = kv_ptr + target + heads * kv_stride_head + dims
    key = tl.load(key_ptr + token * key_stride_token + heads * key_stride_head + dims, mask=mask)
    tl.store(targets, key, mask=mask)
    value = tl.load(
        value_ptr + token * value_stride_token + heads * value_stride_head + dims, mask=mask
    )
    tl.store(targets + kv_stride_value, value, mask=mask)


def plan_store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> Launch:
    """The launch of one call."""
    num_tokens, num_heads, head_dim = key.shape
    heads_pad, head_dim_pad = triton.next_power_of_2(num_heads), triton.next_power_of_2(head_dim)
    return Launch(
        kernel=_store_kv_kernel,
        grid=(num_tokens,),
        arguments={
            "key_ptr": key,
            "value_ptr": value,
            "kv_ptr": kv_layer,
            "slot_mapping_ptr": slot_mapping,
            "key_stride_token": key.stride(0),
            "key_stride_head": key.stride(1),
            "value_stride_token": value.stride(0),
            "value_stride_head": value.stride(1),
            "kv_stride_block": kv_layer.stride(0),
            "kv_stride_value": kv_layer.stride(1),
            "kv_stride_head": kv_layer.stride(2),
            "kv_stride_slot": kv_layer.stride(3),
        },
        constants={
            "NUM_HEADS": num_heads,
            "HEADS_PAD": heads_pad,
            "HEAD_DIM": head_dim,
            "HEAD_DIM_PAD": head_dim_pad,
            "BLOCK_SIZE": kv_layer.shape[3],
        },
        num_warps=8 if heads_pad * head_dim_pad > 4096 else 4,
    )


def store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """See reference.store_kv."""
    assert key.shape == value.shape, (key.shape, value.shape)
    assert kv_layer.shape[1:3] == (2, key.shape[1]), (kv_layer.shape, key.shape)
    assert kv_layer.shape[4] == key.shape[2], (kv_layer.shape, key.shape)
    assert key.dtype == value.dtype == kv_layer.dtype, (key.dtype, value.dtype, kv_layer.dtype)
    assert key.stride(2) == value.stride(2) == kv_layer.stride(4) == 1
    assert slot_mapping.dtype == torch.int64 and slot_mapping.is_contiguous()
    assert slot_mapping.shape == key.shape[:1], (slot_mapping.shape, key.shape)
    plan_store_kv(key, value, kv_layer, slot_mapping).run()
