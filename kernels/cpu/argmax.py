"""The greatest logit of each row and its place, in one pass over rows in their own dtype.

    row --strips of 1,024--> greatest of each --first that has the greatest of all--> its place

A strip that was found is looked through once more while it is in the first-level cache.
"""

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import unpacked, write_f32, write_i64
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import (
    find_lane,
    keep_between,
    load,
    load_some,
    mark_nan,
    max_lanes,
    maximum,
    splat,
    sum_lanes,
)

STRIP = 1024  # elements
CHUNK = 131072  # elements that are taken at once, some 20 us
LEAST = np.float32(-np.inf)
ZERO = np.float32(0.0)


@inlined
def _load_tail(format, source, whole, size):
    """The elements from `whole` on; the other lanes lose against any number."""
    rest = size - whole
    return keep_between(load_some(format, source, whole, rest), 0, rest, LEAST)


@inlined
def _greatest(format, source, size):
    """(greatest element, where its strip begins); NaN if there is any."""
    whole = size // LANES * LANES
    best, place = LEAST, 0
    marks = splat(ZERO)
    for start in range(0, whole, STRIP):
        even, odd = splat(LEAST), splat(LEAST)
        end = min(start + STRIP, whole)
        pairs = start + (end - start) // (2 * LANES) * (2 * LANES)
        for i in range(start, pairs, 2 * LANES):
            v, w = load(format, source, i), load(format, source, i + LANES)
            even, odd = maximum(v, even), maximum(w, odd)
            marks = mark_nan(mark_nan(marks, v), w)
        if pairs < end:
            v = load(format, source, pairs)
            even, marks = maximum(v, even), mark_nan(marks, v)
        top = max_lanes(maximum(even, odd))
        if top > best:
            best, place = top, start
    if whole < size:
        v = _load_tail(format, source, whole, size)
        marks = mark_nan(marks, v)
        top = max_lanes(maximum(v, splat(LEAST)))
        if top > best:
            best, place = top, whole
    return best + sum_lanes(marks), place


@inlined
def _first_place(format, source, size, begin, value):
    """The first element from `begin` on that equals value, which is there."""
    whole = size // LANES * LANES
    for i in range(begin, whole, LANES):
        lane = find_lane(load(format, source, i), value)
        if lane < LANES:
            return i + lane
    return whole + find_lane(_load_tail(format, source, whole, size), value)


@kernel_per_format
def _argmax(format):
    def argmax(args, first, last):
        """logits: [num_rows, size], stride in bytes; greatest: float32, places: int64."""
        logits, stride, size, greatest, places = unpacked(args, 5)
        for row in range(first, last):
            source = logits + row * stride
            best, begin = _greatest(format, source, size)
            write_f32(greatest, row, best)
            found = 0 if np.isnan(best) else _first_place(format, source, size, begin, best)
            write_i64(places, row, found)

    return argmax


def argmax(logits: torch.Tensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(greatest, the first place that has it) of each row of logits [N, size].

    A row with a NaN has NaN, and a place that says nothing.
    """
    num_rows, size = logits.shape
    code = _argmax(logits.dtype)
    assert size > 0 and logits.stride(1) == 1, "a row is one span of memory"
    greatest, places = np.empty(num_rows, np.float32), np.empty(num_rows, np.int64)
    stride = logits.stride(0) * logits.element_size()
    args = (logits.data_ptr(), stride, size, greatest.ctypes.data, places.ctypes.data)
    run(code, args, num_rows, CHUNK // size + 1)
    return greatest, places
