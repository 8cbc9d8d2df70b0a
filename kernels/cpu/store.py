"""New keys and values into their slots of the paged KV."""

import torch

from octavo.kernels.cpu.jit import jit
from octavo.kernels.cpu.memory import copy_bytes, read_i64


@jit
def _store_kv(key, key_strides, value, value_strides, kv_layer, kv_strides, slots, shape):
    """key_strides, value_strides: (token, head); kv_strides: (block, K to V, head, token); bytes.

    shape: (T, num_kv_heads, block_size, bytes of a row); slots: [T] int64.
    """
    num_tokens, num_heads, block_size, row_bytes = shape
    for t in range(num_tokens):
        slot = read_i64(slots, t)
        if slot < 0:
            continue
        block = slot // block_size
        target = kv_layer + block * kv_strides[0] + (slot - block * block_size) * kv_strides[3]
        for h in range(num_heads):
            row = target + h * kv_strides[2]
            copy_bytes(row, key + t * key_strides[0] + h * key_strides[1], row_bytes)
            source = value + t * value_strides[0] + h * value_strides[1]
            copy_bytes(row + kv_strides[1], source, row_bytes)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.store_kv`; all three have one dtype and a contiguous head_dim."""
    item = kv_layer.element_size()
    if key.element_size() != item or value.element_size() != item:
        raise TypeError(f"key {key.dtype} and value {value.dtype} must be {kv_layer.dtype}")
    num_tokens, num_heads, head_dim = key.shape
    block, pair, head, token, _ = kv_layer.stride()
    _store_kv(
        key.data_ptr(),
        (key.stride(0) * item, key.stride(1) * item),
        value.data_ptr(),
        (value.stride(0) * item, value.stride(1) * item),
        kv_layer.data_ptr(),
        (block * item, pair * item, head * item, token * item),
        slot_mapping.data_ptr(),
        (num_tokens, num_heads, kv_layer.shape[3], head_dim * item),
    )
