"""A query head in float32: loaded and scaled before attention, divided and rounded after it.

While it is attended to, and when it is put aside to be resumed, its softmax is a row of floats:

    [ weighted sum so far, width | maximum so far, x 16 | sum of weights so far, x 16 ]
"""

import math

import numpy as np

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.softmax import MINUS_INFINITY
from octavo.kernels.cpu.vector import (
    FLOAT,
    exp2,
    first_lane,
    fma,
    load,
    load_some,
    maximum,
    mul,
    splat,
    store,
    store_some,
    sub,
)

LOG2_E = math.log2(math.e)
ZERO = np.float32(0.0)


@inlined
def head_width(width):
    """Floats of a head's row."""
    return width + 2 * LANES


@inlined
def load_query(format, source, query, size, scale):
    """query = source * scale, padded with zeros to a multiple of 16."""
    factor = splat(scale)
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(FLOAT, query, i, mul(load(format, source, i), factor))
    if whole < size:
        store(FLOAT, query, whole, mul(load_some(format, source, whole, size - whole), factor))


@inlined
def start_head(output, width):
    """A head that has seen nothing."""
    for i in range(0, width, LANES):
        store(FLOAT, output, i, splat(ZERO))
    store(FLOAT, output, width, splat(MINUS_INFINITY))
    store(FLOAT, output, width + LANES, splat(ZERO))


@inlined
def store_head(format, output, width, out, size):
    """out[size] = the head's weighted mean, rounded to the format; zeros if it saw nothing."""
    total = first_lane(load(FLOAT, output, width + LANES))
    inverse = splat(ZERO if total == 0 else np.float32(1.0) / total)
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(format, out, i, mul(load(FLOAT, output, i), inverse))
    if whole < size:
        store_some(format, out, whole, size - whole, mul(load(FLOAT, output, whole), inverse))


@inlined
def copy_head(target, source, width):
    for i in range(0, head_width(width), LANES):
        store(FLOAT, target, i, load(FLOAT, source, i))


@inlined
def merge_head(target, source, width):
    """Add a head's softmax over other tokens to the one in target."""
    before, added = load(FLOAT, target, width), load(FLOAT, source, width)
    top = maximum(before, added)
    before, added = exp2(sub(before, top)), exp2(sub(added, top))
    for i in range(0, width, LANES):
        weighted = mul(load(FLOAT, source, i), added)
        store(FLOAT, target, i, fma(load(FLOAT, target, i), before, weighted))
    total = width + LANES
    weighted = mul(load(FLOAT, source, total), added)
    store(FLOAT, target, total, fma(load(FLOAT, target, total), before, weighted))
    store(FLOAT, target, width, top)
