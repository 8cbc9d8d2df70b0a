"""Sixteen float32 lanes to bytes, and single numbers to memory, inside numba code."""

from llvmlite import ir
from numba.core import types

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.byte_dot import HAS_AVX2
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import I16, I32, I64, LANES
from octavo.kernels.cpu.vector import f32, i64, vector

I8 = ir.IntType(8)
BYTES = ir.VectorType(I8, LANES)  # one a lane
PAIR = ir.VectorType(I8, 2 * LANES)  # of sixteen lanes
EIGHT_WORDS, SIXTEEN_SHORTS = ir.VectorType(I32, 8), ir.VectorType(I16, 16)
FOUR_SUMS = ir.VectorType(I64, 4)


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


def _packed(builder, low, high):
    """32 lanes, each within -127 .. 127, to nearest even, as bytes: with AVX2."""
    words = [
        lanes.call(builder, "llvm.x86.avx.cvt.ps2dq.256", EIGHT_WORDS, part)
        for v in (low, high)
        for part in registers.parts(builder, v)
    ]
    shorts = [
        lanes.call(builder, "llvm.x86.avx2.packssdw", SIXTEEN_SHORTS, *words[i : i + 2])
        for i in (0, 2)
    ]
    mixed = lanes.call(builder, "llvm.x86.avx2.packsswb", PAIR, *shorts)
    fours = builder.bitcast(mixed, EIGHT_WORDS)
    order = ir.Constant(EIGHT_WORDS, [0, 4, 1, 5, 2, 6, 3, 7])  # packing is within 128 bits
    return builder.bitcast(builder.shuffle_vector(fours, fours, order), PAIR)


@intrinsic
def store_split(typing, address, signs, low, high):
    """Round 32 lanes, each within -127 .. 127; store their sizes, and at signs all bits of those
    below 0. Returns the sum of the sizes of those. For CPUs with AVX2.
    """

    def generate(context, builder, signature, args):
        if not HAS_AVX2:  # compiled all the same, never called
            return ir.Constant(I64, 0)
        address, signs, low, high = args
        whole = _packed(builder, low, high)
        below = builder.ashr(whole, ir.Constant(PAIR, [7] * 2 * LANES))
        size = builder.sub(builder.xor(whole, below), below)
        builder.store(size, lanes.pointer(builder, address, I64(0), 1, PAIR), align=1)
        builder.store(below, lanes.pointer(builder, signs, I64(0), 1, PAIR), align=1)
        counted = builder.and_(size, below)
        none = ir.Constant(PAIR, None)
        sums = lanes.call(builder, "llvm.x86.avx2.psad.bw", FOUR_SUMS, counted, none)
        parts = [builder.extract_element(sums, I32(i)) for i in range(4)]
        return builder.add(builder.add(*parts[:2]), builder.add(*parts[2:]))

    return i64(i64, i64, vector, vector), generate


@intrinsic
def write_float(typing, address, index, value):
    def generate(context, builder, signature, args):
        address, index, value = args
        builder.store(value, lanes.pointer(builder, address, index, 4, lanes.F32))
        return context.get_dummy_value()

    return types.none(i64, i64, f32), generate


@intrinsic
def to_integer(typing, value):
    """A whole float32 as an integer; whatever it is, if it is NaN."""

    def generate(context, builder, signature, args):
        return builder.fptosi(args[0], I64)

    return i64(f32), generate
