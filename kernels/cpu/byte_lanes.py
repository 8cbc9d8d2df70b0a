"""Sixteen float32 lanes to bytes, and single numbers to memory, inside numba code."""

from llvmlite import ir
from numba.core import types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import I32, LANES
from octavo.kernels.cpu.vector import f32, i64, vector

I8 = ir.IntType(8)
BYTES = ir.VectorType(I8, LANES)  # one a lane


@intrinsic
def larger_magnitude(typing, a, b):
    """max(|a|, |b|) in each lane; NaN if either is."""
    return vector(vector, vector), lambda context, builder, signature, args: _magnitude(
        builder, *args
    )


@intrinsic
def largest_magnitude(typing, a):
    """The largest |lane|; NaN if any is."""

    def generate(context, builder, signature, args):
        return lanes.fold(builder, args[0], lambda x, y: _magnitude(builder, x, y))

    return f32(vector), generate


def _magnitude(builder, a, b):
    """Without its sign, a float32 orders as its bits do, and NaN stands above infinity."""
    a, b = (builder.and_(builder.bitcast(v, lanes.WORDS), lanes.words(0x7FFFFFFF)) for v in (a, b))
    return builder.bitcast(builder.select(builder.icmp_unsigned(">", a, b), a, b), lanes.VECTOR)


def _rounded(builder, a):
    """The lanes, each within -127 .. 127, to nearest even, as bytes and as float32."""
    # After this addition the low byte of each lane is the integer in two's complement.
    shifted = builder.fadd(a, lanes.constant(lanes.ROUNDER))
    low = builder.trunc(builder.bitcast(shifted, lanes.WORDS), BYTES)
    return low, builder.fsub(shifted, lanes.constant(lanes.ROUNDER))


@intrinsic
def store_bytes(typing, address, index, a):
    """Round the lanes, each within -127 .. 127, store them as bytes; returns them."""

    def generate(context, builder, signature, args):
        address, index, a = args
        low, whole = _rounded(builder, a)
        builder.store(low, lanes.pointer(builder, address, index, 1, BYTES), align=1)
        return whole

    return vector(i64, i64, vector), generate


@intrinsic
def store_split(typing, address, index, signs, a):
    """As `store_bytes`, but sizes at index and, at index signs, all bits of those below 0."""

    def generate(context, builder, signature, args):
        address, index, signs, a = args
        low, whole = _rounded(builder, a)
        below = builder.ashr(low, ir.Constant(BYTES, [7] * LANES))
        size = builder.sub(builder.xor(low, below), below)
        builder.store(size, lanes.pointer(builder, address, index, 1, BYTES), align=1)
        builder.store(below, lanes.pointer(builder, address, signs, 1, BYTES), align=1)
        return whole

    return vector(i64, i64, i64, vector), generate


@intrinsic
def write_float(typing, address, index, value):
    def generate(context, builder, signature, args):
        address, index, value = args
        builder.store(value, lanes.pointer(builder, address, index, 4, lanes.F32))
        return context.get_dummy_value()

    return types.none(i64, i64, f32), generate


@intrinsic
def write_integer(typing, address, index, value):
    """A whole float32 as int32; whatever it is, if it is NaN."""

    def generate(context, builder, signature, args):
        address, index, value = args
        whole = builder.fptosi(value, I32)
        builder.store(whole, lanes.pointer(builder, address, index, 4, I32))
        return context.get_dummy_value()

    return types.none(i64, i64, f32), generate
