"""RMS norm, alone and fused with the residual addition: each row is taken from memory once."""

import math

import numpy as np
import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import float_of, unpacked
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.team import float_bits, kernel_per_format, run
from octavo.kernels.cpu.vector import (
    add,
    fma,
    load,
    load_some,
    mul,
    rounded,
    splat,
    store,
    store_some,
    sum_lanes,
)

CHUNK = 65536  # elements that are taken at once, some 20 us


@kernel_per_format
def _rms_norm(format):
    def rms_norm(args, first, last):
        """Rows of x [outer, inner, size]; out, and residual if there is one (0: none), are
        contiguous. Strides of x: (outer, inner), bytes."""
        x, inner, outer_stride, inner_stride, residual, weight, out, size, item, eps = unpacked(
            args, 10
        )
        for row in range(first, last):
            source = x + row // inner * outer_stride + row % inner * inner_stride
            index = row * size * item
            if residual != 0:
                _add_row(format, source, residual + index, size)
                source = residual + index
            mean = _square_sum(format, source, size) / np.float32(size)
            factor = np.float32(1.0) / np.sqrt(mean + float_of(eps))
            _scale_row(format, source, splat(factor), weight, out + index, size)

    return rms_norm


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
    dtype, item = x.dtype, x.element_size()
    code = _rms_norm(dtype)
    out = empty(tuple(x.shape), dtype)
    *outer, size = x.shape
    *strides, _ = x.stride()
    inner = outer[-1] if outer else 1
    args = (
        x.data_ptr(),
        max(1, inner),
        strides[0] * item if len(strides) > 1 else 0,
        strides[-1] * item if strides else 0,
        residual_address,
        weight.data_ptr(),
        out.data_ptr(),
        size,
        item,
        float_bits(eps),
    )
    run(code, args, math.prod(outer), CHUNK // size + 1)
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
