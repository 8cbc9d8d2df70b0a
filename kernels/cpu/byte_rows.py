"""Rows of activations as signed bytes: what quantised weights are multiplied with.

    x [depth] --absmax of 32--> bytes [parts * padded] | levels | starts | sums

In two parts, a group is the sizes of its 32 bytes, then all bits of each that is below 0.
levels, float32 [groups]: what a byte of the group is worth. starts, int32: what its sums begin
with, -128 times the sum of the bytes, which takes back an offset of weights, or, in two parts, the
sum of the sizes of those below 0 (byte_assembly). sums, float32, in one part: the bytes' sum times
their level.
Everything is made of the row alone, so a row has the same bytes in any batch. One level for a
whole row would lose more, as few of its values are far larger than the rest.
"""

import numpy as np

from octavo.kernels.cpu.byte_dot import GROUP, OFFSET
from octavo.kernels.cpu.byte_lanes import (
    larger_magnitude,
    largest_magnitude,
    store_bytes,
    store_split,
    to_integer,
    write_float,
)
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import write_i32
from octavo.kernels.cpu.vector import (
    add,
    load,
    load_some,
    mul,
    splat,
    sum_lanes,
)

LEVELS = 127


@inlined
def row_bytes(parts, groups):
    """Room of one quantised row."""
    return (groups * (parts * GROUP + 12) + LINE - 1) // LINE * LINE


@inlined
def _load_padded(format, source, i, size):
    """Elements i .. i + 15 of source [size], zeros past its end."""
    if i + LANES <= size:
        return load(format, source, i)
    return load_some(format, source, i, max(0, size - i))


@inlined
def quantize_row(parts, format, source, size, groups, target):
    """source [size] as a row of bytes in that many parts at target."""
    levels = target + groups * parts * GROUP
    starts, sums = levels + groups * 4, levels + groups * 8
    for group in range(groups):
        begin = group * GROUP
        low = _load_padded(format, source, begin, size)
        high = _load_padded(format, source, begin + LANES, size)
        highest = largest_magnitude(larger_magnitude(low, high))
        factor = splat(np.float32(LEVELS) / highest if highest > 0 else np.float32(0.0))
        low, high = mul(low, factor), mul(high, factor)
        level = highest / np.float32(LEVELS)
        write_float(levels, group, level)
        if parts == 2:
            place = target + begin * parts
            write_i32(starts, group, store_split(place, place + GROUP, low, high))
        else:
            low, high = store_bytes(target, begin, low), store_bytes(target, begin + LANES, high)
            total = sum_lanes(add(low, high))
            write_i32(starts, group, to_integer(total * np.float32(-OFFSET)))
            write_float(sums, group, total * level)
