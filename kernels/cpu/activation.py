"""SiLU of the gate times up, in one pass."""

import math

import numpy as np
import torch

from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import (
    add,
    div,
    exp2,
    format_of,
    load,
    load_some,
    maximum,
    mul,
    rounded,
    splat,
    store,
    store_some,
)

LOG2_E = np.float32(math.log2(math.e))


@inlined
def _silu(v):
    """v / (1 + 2 ** -(v * log2(e))), the power kept finite."""
    power = maximum(mul(v, splat(LOG2_E)), splat(np.float32(-126.0)))
    return div(v, add(splat(np.float32(1.0)), exp2(mul(power, splat(np.float32(-1.0))))))


@jit
def _silu_mul(format, gate_up, stride, out, num_rows, size, item_bytes):
    """gate_up: [num_rows, 2 * size], stride in bytes; out: [num_rows, size], contiguous."""
    whole = size // LANES * LANES
    for row in range(num_rows):
        gate = gate_up + row * stride
        up = gate + size * item_bytes
        target = out + row * size * item_bytes
        for i in range(0, whole, LANES):
            v = rounded(format, _silu(load(format, gate, i)))
            store(format, target, i, mul(v, load(format, up, i)))
        if whole < size:
            rest = size - whole
            v = rounded(format, _silu(load_some(format, gate, whole, rest)))
            store_some(format, target, whole, rest, mul(v, load_some(format, up, whole, rest)))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_mul`."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    item = gate_up.element_size()
    _silu_mul(
        format_of(gate_up.dtype),
        gate_up.data_ptr(),
        gate_up.stride(0) * item,
        out.data_ptr(),
        rows,
        size,
        item,
    )
    return out
