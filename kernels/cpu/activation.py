"""SiLU of the gate times up, in one pass."""

import math

import numpy as np
import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import unpacked
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import (
    add,
    div,
    exp2,
    load,
    load_some,
    maximum,
    mul,
    rounded,
    splat,
    store,
    store_some,
)

CHUNK = 16384  # elements that are taken at once, some 15 us
LOG2_E = np.float32(math.log2(math.e))


@inlined
def _silu(v):
    """v / (1 + 2 ** -(v * log2(e))), the power kept finite."""
    power = maximum(mul(v, splat(LOG2_E)), splat(np.float32(-126.0)))
    return div(v, add(splat(np.float32(1.0)), exp2(mul(power, splat(np.float32(-1.0))))))


@kernel_per_format
def _silu_mul(format):
    def silu_mul(args, first, last):
        """gate_up: [num_rows, 2 * size], stride in bytes; out: [num_rows, size], contiguous."""
        gate_up, stride, out, size, item_bytes = unpacked(args, 5)
        whole = size // LANES * LANES
        for row in range(first, last):
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

    return silu_mul


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_mul`."""
    rows, both = gate_up.shape
    size, dtype = both // 2, gate_up.dtype
    code = _silu_mul(dtype)
    out = empty((rows, size), dtype)
    item = gate_up.element_size()
    args = (gate_up.data_ptr(), gate_up.stride(0) * item, out.data_ptr(), size, item)
    run(code, args, rows, CHUNK // size + 1)
    return out
