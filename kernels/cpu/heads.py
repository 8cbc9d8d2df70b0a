"""A query head in float32: loaded and scaled before attention, divided and rounded after it."""

import math

import numpy as np

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import FLOAT, load, load_some, mul, splat, store, store_some

LOG2_E = math.log2(math.e)


@inlined
def start_head(format, source, query, output, size, scale):
    """query = source * scale and output = 0, both padded with zeros to 16."""
    factor = splat(scale)
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(FLOAT, query, i, mul(load(format, source, i), factor))
        store(FLOAT, output, i, splat(np.float32(0.0)))
    if whole < size:
        store(FLOAT, query, whole, mul(load_some(format, source, whole, size - whole), factor))
        store(FLOAT, output, whole, splat(np.float32(0.0)))


@inlined
def store_head(format, output, total, out, size):
    """out[size] = output / total, rounded to the format; zeros if nothing was in sight."""
    inverse = splat(np.float32(0.0) if total == 0 else np.float32(1.0) / total)
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(format, out, i, mul(load(FLOAT, output, i), inverse))
    if whole < size:
        store_some(format, out, whole, size - whole, mul(load(FLOAT, output, whole), inverse))
