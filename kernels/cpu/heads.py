"""A query head in float32: loaded and scaled before attention, divided and rounded after it.

A head whose softmax is unfinished can be put aside as a row of floats and resumed from it:

    [ weighted sum so far, width | maximum so far, x 16 | sum of weights so far, x 16 ]
"""

import math

import numpy as np

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
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


@inlined
def partial_width(width):
    """Floats of a head that is put aside."""
    return width + 2 * LANES


@inlined
def save_head(partial, output, highest, total, width):
    """Put a head aside."""
    for i in range(0, width, LANES):
        store(FLOAT, partial, i, load(FLOAT, output, i))
    store(FLOAT, partial, width, splat(highest))
    store(FLOAT, partial, width + LANES, splat(total))


@inlined
def merge_head(partial, output, highest, total, width):
    """Add a head's softmax over other tokens to the one that was put aside."""
    before, added = load(FLOAT, partial, width), splat(highest)
    top = maximum(before, added)
    before, added = exp2(sub(before, top)), exp2(sub(added, top))
    for i in range(0, width, LANES):
        weighted = mul(load(FLOAT, output, i), added)
        store(FLOAT, partial, i, fma(load(FLOAT, partial, i), before, weighted))
    old_total = load(FLOAT, partial, width + LANES)
    store(FLOAT, partial, width, top)
    store(FLOAT, partial, width + LANES, fma(old_total, before, mul(splat(total), added)))


@inlined
def resume_head(partial, output, highest, total, r, width):
    """Row r becomes the head that was put aside."""
    for i in range(0, width, LANES):
        store(FLOAT, output, i, load(FLOAT, partial, i))
    highest[r] = first_lane(load(FLOAT, partial, width))
    total[r] = first_lane(load(FLOAT, partial, width + LANES))
