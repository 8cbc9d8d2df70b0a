"""The greatest logit of each row and its place, in one pass over rows in their own dtype.

    row --strips of 1,024--> greatest of each --first that has the greatest of all--> its place

A strip that was found is looked through once more while it is in the first-level cache. Numbers of
16 bits are compared as the integers that their bits are: three comparisons for 16 numbers of a
register, where widening them takes a dozen instructions.
"""

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import inlined, intrinsic
from octavo.kernels.cpu.lanes import I16, I64, LANES
from octavo.kernels.cpu.memory import borrow, give_back, read_i64, unpacked, write_f32, write_i64
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import (
    FLOAT,
    FORMATS,
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
NAN = np.float32(np.nan)
ZERO = np.float32(0.0)
SIGN = 1 << 15
SHORTS_AT_ONCE = 32
ROWS = 4  # that are read by turns
_SHORT_VECTOR = ir.VectorType(I16, SHORTS_AT_ONCE)


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


@intrinsic
def _extremes(typing, source, size):
    """(greatest signed, greatest and least unsigned) of `size` 16-bit numbers, a multiple of 32."""

    def generate(context, builder, signature, args):
        source, size = args
        starts = {"smax": -1 << 15, "umax": 0, "umin": -1}
        found = {name: cgutils.alloca_once(builder, _SHORT_VECTOR) for name in starts}
        for name, start in starts.items():
            builder.store(ir.Constant(_SHORT_VECTOR, [start] * SHORTS_AT_ONCE), found[name])
        step = I64(SHORTS_AT_ONCE)
        with cgutils.for_range_slice(builder, I64(0), size, step, inc=True) as (i, _):
            v = builder.load(lanes.pointer(builder, source, i, 2, _SHORT_VECTOR), align=2)
            for name, place in found.items():
                call = f"llvm.{name}.v{SHORTS_AT_ONCE}i16"
                best = lanes.call(builder, call, _SHORT_VECTOR, builder.load(place), v)
                builder.store(best, place)
        results = []
        for name, place in found.items():
            call = f"llvm.vector.reduce.{name}.v{SHORTS_AT_ONCE}i16"
            best = lanes.call(builder, call, I16, builder.load(place))
            widen = builder.sext if name == "smax" else builder.zext
            results.append(widen(best, I64))
        return context.make_tuple(builder, signature.return_type, results)

    return types.UniTuple(types.int64, 3)(types.int64, types.int64), generate


@inlined
def _greatest_strips(source, stride, num_rows, size, infinity, found):
    """found[r] = (key of the greatest of row r's `size` 16-bit numbers, where its strip begins).

    The place is -1 if one is NaN. size: a multiple of 32; infinity: its bits. Of negative numbers
    the least has the greatest bits. Rows are read by turns: a core fetches several distant streams
    faster than one.
    """
    for r in range(num_rows):
        write_i64(found, 2 * r, -(1 << 16))
        write_i64(found, 2 * r + 1, 0)
    for start in range(0, size, STRIP):
        for r in range(num_rows):
            place = source + r * stride + 2 * start
            signed, most, least = _extremes(place, min(STRIP, size - start))
            top = signed if signed >= 0 else SIGN - least
            if signed > infinity or most > SIGN + infinity:
                write_i64(found, 2 * r, 1 << 16)
                write_i64(found, 2 * r + 1, -1)
            elif top > read_i64(found, 2 * r):
                write_i64(found, 2 * r, top)
                write_i64(found, 2 * r + 1, start)


@inlined
def _greatest_short(format, source, size, begin):
    """As `_greatest`, of a row of 16-bit numbers whose strip is known."""
    whole = size // SHORTS_AT_ONCE * SHORTS_AT_ONCE
    if begin < 0:
        return NAN, 0
    best, place = _greatest(format, source + 2 * begin, min(STRIP, whole - begin))
    rest, place_in_rest = _greatest(format, source + 2 * whole, size - whole)
    if rest > best or np.isnan(rest):
        return rest, whole + place_in_rest
    return best, begin + place


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
    has_floats = format is FLOAT
    infinity = 0x7F80 if format is FORMATS[torch.bfloat16] else 0x7C00

    def argmax(args, first, last):
        """logits: [num_rows, size], stride in bytes; greatest: float32, places: int64."""
        logits, stride, size, greatest, places = unpacked(args, 5)
        strips = borrow(2 * 8 * ROWS)
        for begin in range(first, last, ROWS):
            source, end = logits + begin * stride, min(begin + ROWS, last)
            if not has_floats:
                whole = size // SHORTS_AT_ONCE * SHORTS_AT_ONCE
                _greatest_strips(source, stride, end - begin, whole, infinity, strips)
            for row in range(begin, end):
                source = logits + row * stride
                if has_floats:
                    best, place = _greatest(format, source, size)
                else:
                    strip = read_i64(strips, 2 * (row - begin) + 1)
                    best, place = _greatest_short(format, source, size, strip)
                write_f32(greatest, row, best)
                found = 0 if np.isnan(best) else _first_place(format, source, size, place, best)
                write_i64(places, row, found)
        give_back(strips)

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
    run(code, args, num_rows, max(ROWS, CHUNK // size + 1))
    return greatest, places
