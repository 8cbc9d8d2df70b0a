"""RMS norm, alone and fused with the residual addition: each row is taken from memory once."""

import numpy as np
import torch

from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import (
    add,
    fma,
    format_of,
    load,
    load_some,
    mul,
    rounded,
    splat,
    store,
    store_some,
    sum_lanes,
)


@jit
def _rms_norm(
    format,
    x,  # [outer, inner, size]
    counts,  # (outer, inner)
    strides,  # of x: (outer, inner), bytes
    residual,  # [outer, inner, size] contiguous, becomes residual + x; 0 if there is none
    weight,  # [size]
    out,  # [outer, inner, size], contiguous
    size,
    item_bytes,
    eps,
):
    for i in range(counts[0]):
        for j in range(counts[1]):
            source = x + i * strides[0] + j * strides[1]
            index = (i * counts[1] + j) * size * item_bytes
            if residual != 0:
                _add_row(format, source, residual + index, size)
                source = residual + index
            mean = _square_sum(format, source, size) / np.float32(size)
            factor = np.float32(1.0) / np.sqrt(mean + eps)
            _scale_row(format, source, splat(factor), weight, out + index, size)


@inlined
def _add_row(format, x, residual, size):
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(format, residual, i, add(load(format, residual, i), load(format, x, i)))
    if whole < size:
        rest = size - whole
        v = add(load_some(format, residual, whole, rest), load_some(format, x, whole, rest))
        store_some(format, residual, whole, rest, v)


@inlined
def _square_sum(format, x, size):
    whole = size // LANES * LANES
    pairs = size // (2 * LANES) * (2 * LANES)
    even = splat(np.float32(0.0))
    odd = splat(np.float32(0.0))
    for i in range(0, pairs, 2 * LANES):
        v = load(format, x, i)
        w = load(format, x, i + LANES)
        even = fma(v, v, even)
        odd = fma(w, w, odd)
    if pairs < whole:
        v = load(format, x, pairs)
        even = fma(v, v, even)
    if whole < size:
        w = load_some(format, x, whole, size - whole)
        odd = fma(w, w, odd)
    return sum_lanes(add(even, odd))


@inlined
def _scale_row(format, x, factor, weight, out, size):
    """Rounded before the weight too, as `transformers` does."""
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        v = rounded(format, mul(load(format, x, i), factor))
        store(format, out, i, mul(v, load(format, weight, i)))
    if whole < size:
        rest = size - whole
        v = rounded(format, mul(load_some(format, x, whole, rest), factor))
        store_some(format, out, whole, rest, mul(v, load_some(format, weight, whole, rest)))


def _launch(
    x: torch.Tensor, residual_address: int, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    item = x.element_size()
    outer, inner, size = (1,) * (3 - x.dim()) + tuple(x.shape)
    strides = (0,) * (3 - x.dim()) + x.stride()
    _rms_norm(
        format_of(x.dtype),
        x.data_ptr(),
        (outer, inner),
        (strides[0] * item, strides[1] * item),
        residual_address,
        weight.data_ptr(),
        out.data_ptr(),
        size,
        item,
        np.float32(eps),
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `reference.rms_norm`; x has at most three dimensions, the last one contiguous."""
    return _launch(x, 0, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.add_rms_norm`; the sum is written over residual."""
    residual = residual.contiguous()
    return _launch(x, residual.data_ptr(), weight, eps), residual
