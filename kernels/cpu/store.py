"""New keys and values into their slots of the paged KV."""

import torch

from octavo.kernels.cpu.memory import copy_bytes, read_i64, unpacked
from octavo.kernels.cpu.team import kernel, run

CHUNK = 65536  # elements of K that are taken at once


@kernel
def _store_kv(args, first, last):
    """Of key and value: (address, token stride, head stride); of the KV: (address, strides of
    block, K to V, head, token); all strides in bytes. slots: [T] int64."""
    key, key_token, key_head, value, value_token, value_head = unpacked(args, 6)
    kv_layer, block_stride, pair_stride, head_stride, token_stride = unpacked(args + 6 * 8, 5)
    slots, num_heads, block_size, row_bytes = unpacked(args + 11 * 8, 4)
    for t in range(first, last):
        slot = read_i64(slots, t)
        if slot < 0:
            continue
        block = slot // block_size
        target = kv_layer + block * block_stride + (slot - block * block_size) * token_stride
        for h in range(num_heads):
            row = target + h * head_stride
            copy_bytes(row, key + t * key_token + h * key_head, row_bytes)
            copy_bytes(row + pair_stride, value + t * value_token + h * value_head, row_bytes)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.store_kv`; all three have one dtype and a contiguous head_dim."""
    item = kv_layer.element_size()
    if key.element_size() != item or value.element_size() != item:
        raise TypeError(f"key {key.dtype} and value {value.dtype} must be {kv_layer.dtype}")
    num_tokens, num_heads, head_dim = key.shape
    block, pair, head, token, _ = kv_layer.stride()
    key_token, key_head, _ = key.stride()
    value_token, value_head, _ = value.stride()
    args = (
        key.data_ptr(),
        key_token * item,
        key_head * item,
        value.data_ptr(),
        value_token * item,
        value_head * item,
        kv_layer.data_ptr(),
        block * item,
        pair * item,
        head * item,
        token * item,
        slot_mapping.data_ptr(),
        num_heads,
        kv_layer.shape[3],
        head_dim * item,
    )
    run(_store_kv, args, num_tokens, CHUNK // (num_heads * head_dim) + 1)
