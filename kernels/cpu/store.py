"""New keys and values into their slots of the paged KV."""

import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.memory import copy_bytes, read_i64, unpacked
from octavo.kernels.cpu.team import kernel, run

CHUNK = 65536  # elements of K that are taken at once


@inlined
def store_token(args, t):
    """Key and value of token t; args: see store_args."""
    key, key_token, key_head, value, value_token, value_head = unpacked(args, 6)
    kv_layer, block_stride, pair_stride, head_stride, token_stride = unpacked(args + 6 * 8, 5)
    slots, num_heads, block_size, row_bytes = unpacked(args + 11 * 8, 4)
    slot = read_i64(slots, t)
    if slot < 0:
        return
    block = slot // block_size
    target = kv_layer + block * block_stride + (slot - block * block_size) * token_stride
    for h in range(num_heads):
        row = target + h * head_stride
        copy_bytes(row, key + t * key_token + h * key_head, row_bytes)
        copy_bytes(row + pair_stride, value + t * value_token + h * value_head, row_bytes)


@kernel
def _store_kv(args, first, last):
    for t in range(first, last):
        store_token(args, t)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.store_kv`; all three have one dtype and a contiguous head_dim."""
    args = store_args(key, value, kv_layer, slot_mapping)
    run(_store_kv, args, len(key), CHUNK // (key.shape[1] * key.shape[2]) + 1)


def store_args(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> tuple[int, ...]:
    """Of key and value: (address, token stride, head stride); of the KV: (address, strides of
    block, K to V, head, token); all strides in bytes. slot_mapping: [T] int64."""
    item = kv_layer.element_size()
    if key.element_size() != item or value.element_size() != item:
        raise TypeError(f"key {key.dtype} and value {value.dtype} must be {kv_layer.dtype}")
    block, pair, head, token, _ = kv_layer.stride()
    key_token, key_head, _ = key.stride()
    value_token, value_head, _ = value.stride()
    return (
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
        key.shape[1],
        kv_layer.shape[3],
        key.shape[2] * item,
    )
