"""Rows of activations as signed bytes: what quantised weights are multiplied with.

    x [depth] --absmax of 32--> bytes [padded] | levels | starts | sums

levels, float32 [groups]: what a byte of the group is worth. starts, int32: -128 times the sum of
the group's bytes, which takes back an offset of weights. sums, float32: that sum times its level.
Everything is made of the row alone, so a row has the same bytes in any batch. One level for a
whole row would lose more, as few of its values are far larger than the rest.
"""

import numpy as np

from octavo.kernels.cpu.byte_dot import OFFSET
from octavo.kernels.cpu.byte_lanes import (
    larger_magnitude,
    largest_magnitude,
    store_bytes,
    write_float,
    write_integer,
)
from octavo.kernels.cpu.byte_panel import GROUP
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import add, load, load_some, mul, splat, sum_lanes

LEVELS = 127
LINE = 64  # bytes


@inlined
def row_bytes(groups):
    """Room of one quantised row."""
    return (groups * (GROUP + 12) + LINE - 1) // LINE * LINE


@inlined
def _load_padded(format, source, i, size):
    """Elements i .. i + 15 of source [size], zeros past its end."""
    if i + LANES <= size:
        return load(format, source, i)
    return load_some(format, source, i, max(0, size - i))


@inlined
def quantize_row(format, source, size, groups, target):
    """source [size] as a row of bytes at target."""
    levels = target + groups * GROUP
    starts, sums = levels + groups * 4, levels + groups * 8
    for group in range(groups):
        begin = group * GROUP
        low = _load_padded(format, source, begin, size)
        high = _load_padded(format, source, begin + LANES, size)
        highest = largest_magnitude(larger_magnitude(low, high))
        factor = splat(np.float32(LEVELS) / highest if highest > 0 else np.float32(0.0))
        low = store_bytes(target, begin, mul(low, factor))
        high = store_bytes(target, begin + LANES, mul(high, factor))
        level, total = highest / np.float32(LEVELS), sum_lanes(add(low, high))
        write_float(levels, group, level)
        write_integer(starts, group, total * np.float32(-OFFSET))
        write_float(sums, group, total * level)
