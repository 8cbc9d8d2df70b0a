"""Rotary position embedding, in place, query and key in one call."""

import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import unpacked
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    load,
    load_some,
    mul,
    store,
    store_some,
    sub,
)

NUM_ARGS = 14
CHUNK = 65536  # elements that are taken at once, some 15 us


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


@inlined
def rotate_token(format, args, t):
    """Query and key of token t; args: see rotary_args."""
    query, query_heads, query_token, query_head = unpacked(args, 4)
    key, key_heads, key_token, key_head = unpacked(args + 4 * 8, 4)
    cos, cos_stride, sin, sin_stride, half, item = unpacked(args + 8 * 8, 6)
    angles = cos + t * cos_stride, sin + t * sin_stride
    source = query + t * query_token
    _rotate_heads(format, source, query_heads, query_head, angles, half, item)
    source = key + t * key_token
    _rotate_heads(format, source, key_heads, key_head, angles, half, item)


@kernel_per_format
def _rotary(format):
    def rotary(args, first, last):
        for t in range(first, last):
            rotate_token(format, args, t)

    return rotary


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """As `reference.rotary`; head_dim is contiguous in query and key, R in cos and sin."""
    args = rotary_args(query, key, cos, sin)
    run(_rotary(query.dtype), args, len(query), tokens_at_once(query))


def tokens_at_once(query: torch.Tensor) -> int:
    """Of [T, num_heads, head_dim]."""
    return CHUNK // (query.shape[1] * query.shape[2]) + 1


def rotary_args(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[int, ...]:
    """Of query and key: (address, heads, token stride, head stride); strides in bytes."""
    item = query.element_size()
    query_token, query_head, _ = query.stride()
    key_token, key_head, _ = key.stride()
    return (
        query.data_ptr(),
        query.shape[1],
        query_token * item,
        query_head * item,
        key.data_ptr(),
        key.shape[1],
        key_token * item,
        key_head * item,
        cos.data_ptr(),
        cos.stride(0) * 4,
        sin.data_ptr(),
        sin.stride(0) * 4,
        cos.shape[1],
        item,
    )
