"""Rotary position embedding, in place, query and key in one call."""

import torch

from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    format_of,
    load,
    load_some,
    mul,
    store,
    store_some,
    sub,
)


@inlined
def _rotate_heads(format, x, num_heads, head_stride, angles, half, item_bytes):
    """Turn (first half, second half) of each head by the token's angles, (cos, sin) addresses."""
    whole = half // LANES * LANES
    rest = half - whole
    for h in range(num_heads):
        first = x + h * head_stride
        second = first + half * item_bytes
        for i in range(0, whole, LANES):
            c, s = load(FLOAT, angles[0], i), load(FLOAT, angles[1], i)
            a, b = load(format, first, i), load(format, second, i)
            store(format, first, i, sub(mul(a, c), mul(b, s)))
            store(format, second, i, add(mul(b, c), mul(a, s)))
        if rest:
            c = load_some(FLOAT, angles[0], whole, rest)
            s = load_some(FLOAT, angles[1], whole, rest)
            a = load_some(format, first, whole, rest)
            b = load_some(format, second, whole, rest)
            store_some(format, first, whole, rest, sub(mul(a, c), mul(b, s)))
            store_some(format, second, whole, rest, add(mul(b, c), mul(a, s)))


@jit
def _rotary(format, query, query_shape, key, key_shape, cos, sin, table_shape, item_bytes):
    """query_shape, key_shape: (heads, token stride, head stride); table_shape: (T, R, stride of
    cos, stride of sin); strides in bytes."""
    for t in range(table_shape[0]):
        angles = cos + t * table_shape[2], sin + t * table_shape[3]
        half = table_shape[1]
        source = query + t * query_shape[1]
        _rotate_heads(format, source, query_shape[0], query_shape[2], angles, half, item_bytes)
        source = key + t * key_shape[1]
        _rotate_heads(format, source, key_shape[0], key_shape[2], angles, half, item_bytes)


def _heads(x: torch.Tensor) -> tuple[int, int, int]:
    item = x.element_size()
    return x.shape[1], x.stride(0) * item, x.stride(1) * item


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """As `reference.rotary`; head_dim is contiguous in query and key, R in cos and sin."""
    _rotary(
        format_of(query.dtype),
        query.data_ptr(),
        _heads(query),
        key.data_ptr(),
        _heads(key),
        cos.data_ptr(),
        sin.data_ptr(),
        (cos.shape[0], cos.shape[1], cos.stride(0) * 4, sin.stride(0) * 4),
        query.element_size(),
    )
