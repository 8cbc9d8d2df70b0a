"""Online softmax of one row of scores, in powers of two (scores come times log2(e))."""

import numpy as np

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    exp2,
    first_lane,
    keep_between,
    load,
    max_lanes,
    maximum,
    mul,
    splat,
    store,
    sub,
    sum_lanes,
)

MINUS_INFINITY = np.float32(-np.inf)


@inlined
def softmax(scores, low, high, end, output, width):
    """scores[low:high] to weights 2 ** (score - maximum), the rest of scores[:end] to 0.

    output: the row's head (heads.py), which is rescaled when its maximum grows. end is a multiple
    of 16, high is above low.
    """
    top = splat(MINUS_INFINITY)
    for i in range(0, end, LANES):
        v = load(FLOAT, scores, i)
        if i < low or i + LANES > high:
            v = keep_between(v, low - i, high - i, MINUS_INFINITY)
            store(FLOAT, scores, i, v)
        top = maximum(v, top)
    peak = max_lanes(top)
    highest = first_lane(load(FLOAT, output, width))
    if not peak <= highest:
        factor = exp2(splat(highest - peak))
        highest = peak
        store(FLOAT, output, width, splat(peak))
        for i in range(0, width, LANES):
            store(FLOAT, output, i, mul(load(FLOAT, output, i), factor))
        total = width + LANES
        store(FLOAT, output, total, mul(load(FLOAT, output, total), factor))
    peaks = splat(highest)
    added = splat(np.float32(0.0))
    for i in range(0, end, LANES):
        weights = exp2(sub(load(FLOAT, scores, i), peaks))
        store(FLOAT, scores, i, weights)
        added = add(added, weights)
    total = add(load(FLOAT, output, width + LANES), splat(sum_lanes(added)))
    store(FLOAT, output, width + LANES, total)
