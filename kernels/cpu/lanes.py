"""LLVM code for sixteen float32 lanes: what `vector.py` offers to numba functions is made of this.

All values are <16 x float>. No fast-math flags: additions happen in the order written here, so a
result depends on its operands alone.
"""

import math

from llvmlite import ir
from numba.core import cgutils, types

LANES = 16
LINE = 64  # bytes of a cache line
F32 = ir.FloatType()
HALF = ir.HalfType()
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
SHORTS = ir.VectorType(I16, LANES)
WORDS = ir.VectorType(I32, LANES)
HALVES = ir.VectorType(HALF, LANES)
# Memory of each format (see vector.FORMATS): the vector type that is loaded, bytes per element.
MEMORY = {types.float32: (VECTOR, 4), types.uint16: (SHORTS, 2), types.int16: (HALVES, 2)}

# 2 ** f for |f| <= 1/2 as a Taylor polynomial of f * ln 2; the first term left out is below 6e-9.
EXP2 = [math.log(2) ** k / math.factorial(k) for k in range(8)]
# The same within 3e-6, a fifth of the last of 16 bits.
EXP2_HALF = [1.0, 0.693124193, 0.240240986, 0.0559064254, 0.00958285325]
# 2 ** f for 0 <= f < 1 within 9e-5, a twentieth of what rounding to bfloat16 changes; 2 ** 0 is 1.
EXP2_SHORT = [1.0, 0.6951168, 0.22764482, 0.0770672]
ROUNDER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits

_DOWN = 1  # which part of a number `reduce` keeps: what is above its floor
_NO_ROUNDING = 4  # of its own: an instruction rounds as all do


def call(builder, name, result, *operands):
    """Call an intrinsic of LLVM, or a function of C, that returns `result`."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, operands)


def constant(value):
    return ir.Constant(VECTOR, [value] * LANES)


def words(value):
    return ir.Constant(WORDS, [value] * LANES)


def splat(builder, scalar):
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(WORDS, [0] * LANES))


def splat_word(builder, number):
    """An int64 in all lanes of <16 x i32>."""
    float_bits = builder.bitcast(builder.trunc(number, I32), F32)
    return builder.bitcast(splat(builder, float_bits), WORDS)


def fetch(builder, address, locality=3):
    """Ask for a cache line, near the core (3) or into the L2 cache (2); harmless anywhere."""
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), place, I32(0), I32(locality), I32(1))


def fma(builder, a, b, c):
    """a * b + c: one instruction where the CPU has it."""
    return call(builder, "llvm.fmuladd.v16f32", VECTOR, a, b, c)


def sqrt(builder, v):
    return call(builder, "llvm.sqrt.v16f32", VECTOR, v)


def pointer(builder, address, index, item_bytes, kind):
    """Pointer to element `index` of the array at `address`."""
    byte = builder.add(address, builder.mul(index, I64(item_bytes)))
    return builder.inttoptr(byte, kind.as_pointer())


def load_floats(builder, address, index):
    return builder.load(pointer(builder, address, index, 4, VECTOR), align=4)


def store_floats(builder, address, index, v):
    builder.store(v, pointer(builder, address, index, 4, VECTOR), align=4)


def widen(builder, raw):
    """A vector of one format to float32."""
    item, count = raw.type.element, raw.type.count
    if item == F32:
        return raw
    if item == HALF:
        return builder.fpext(raw, ir.VectorType(F32, count))
    kind = ir.VectorType(I32, count)
    bits = builder.shl(builder.zext(raw, kind), ir.Constant(kind, [16] * count))
    return builder.bitcast(bits, ir.VectorType(F32, count))


def narrow(builder, kind, v):
    """float32 to memory of one format, to nearest even, as torch rounds."""
    if kind is VECTOR:
        return v
    if kind is HALVES:
        return builder.fptrunc(v, HALVES)
    bits = builder.bitcast(v, WORDS)
    odd = builder.and_(builder.lshr(bits, words(16)), words(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, words(0x7FFF))), words(16))
    is_nan = builder.fcmp_unordered("uno", v, v)
    return builder.trunc(builder.select(is_nan, words(0x7FC0), rounded), SHORTS)


def copy_bytes(builder, destination, source, num_bytes):
    cgutils.raw_memcpy(builder, destination, source, num_bytes, 1)


def exp2(builder, v, series=EXP2):
    """2 ** v; 0 below -127, so also for minus infinity; NaN stays NaN. v must be below 127."""
    small = builder.fcmp_ordered("olt", v, constant(-127.0))
    v = builder.select(small, constant(-127.0), v)
    shifted = builder.fadd(v, constant(ROUNDER + 127.0))
    whole = builder.fsub(shifted, constant(ROUNDER + 127.0))
    part = builder.fsub(v, whole)
    value = constant(series[-1])
    for coefficient in reversed(series[:-1]):
        value = fma(builder, value, part, constant(coefficient))
    power = builder.bitcast(builder.shl(builder.bitcast(shifted, WORDS), words(23)), VECTOR)
    return builder.fmul(value, power)


def exp2_short(builder, v):
    """2 ** v to the precision of bfloat16, for CPUs with AVX-512; 0 for minus infinity."""
    every = ir.Constant(I16, -1)
    options = v, every, I32(_NO_ROUNDING)
    part = call(builder, "llvm.x86.avx512.mask.reduce.ps.512", VECTOR, v, I32(_DOWN), *options)
    value = constant(EXP2_SHORT[3])
    for k in range(2, -1, -1):
        value = fma(builder, value, part, constant(EXP2_SHORT[k]))
    return call(builder, "llvm.x86.avx512.mask.scalef.ps.512", VECTOR, value, v, *options)


def fold(builder, v, combine):
    """All lanes combined as a tree; the result in lane 0."""
    for width in (8, 4, 2, 1):
        order = [(i + width) % LANES for i in range(LANES)]
        v = combine(v, builder.shuffle_vector(v, v, ir.Constant(WORDS, order)))
    return builder.extract_element(v, I32(0))


def maximum(builder, a, b):
    return builder.select(builder.fcmp_ordered("ogt", a, b), a, b)


def add_neighbours(builder, vectors, width):
    """One level of the tree that sums lanes: half as many vectors.

    Each vector holds LANES / width sums of `width` partial sums each; two become one with
    2 * LANES / width sums of width / 2 partial sums, the first one's before the second's.
    """
    half = width // 2
    low = [base + i for base in range(0, 2 * LANES, width) for i in range(half)]
    high = [index + half for index in low]
    return [
        builder.fadd(
            builder.shuffle_vector(a, b, ir.Constant(WORDS, low)),
            builder.shuffle_vector(a, b, ir.Constant(WORDS, high)),
        )
        for a, b in zip(vectors[::2], vectors[1::2], strict=True)
    ]


def transposed(builder, vectors):
    """16 vectors as the rows of a matrix, to its columns."""
    for bit in (8, 4, 2, 1):
        keep = [i if not i & bit else i - bit + LANES for i in range(LANES)]
        move = [i + bit if not i & bit else i + LANES for i in range(LANES)]
        result = list(vectors)
        for i in range(LANES):
            if not i & bit:
                a, b = vectors[i], vectors[i + bit]
                result[i] = builder.shuffle_vector(a, b, ir.Constant(WORDS, keep))
                result[i + bit] = builder.shuffle_vector(a, b, ir.Constant(WORDS, move))
        vectors = result
    return vectors
