"""Sixteen float32 lanes as one value inside numba code.

    memory (float32 | bfloat16 | float16)  --load-->  Vector (16 x float32)  --store-->  memory

LLVM maps a Vector to one AVX-512 register, two AVX2 ones or four NEON ones. Addresses are plain
int64; the *format* of loads and stores is a numpy scalar that only lends its type: float32 for
float32, uint16 for bfloat16, int16 for float16.
"""

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import I16, I32, I64, LANES, MEMORY

FORMATS: dict[torch.dtype, np.generic] = {
    torch.float32: np.float32(0),
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
}
FLOAT = FORMATS[torch.float32]


class UnsupportedDtype(TypeError):
    """The CPU kernels have no code for a tensor's dtype."""


def format_of(dtype: torch.dtype) -> np.generic:
    """The format argument for tensors of this dtype."""
    if dtype not in FORMATS:
        raise UnsupportedDtype(f"kernels take float32, bfloat16 or float16, got {dtype}")
    return FORMATS[dtype]


class Vector(types.Type):
    """Type of 16 float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Float32x16")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, lanes.VECTOR)


vector = Vector()
f32, i64 = types.float32, types.int64


def _emit(make):
    """An intrinsic's code generator from a function of builder and operands."""
    return lambda context, builder, signature, args: make(builder, *args)


def _emit_void(make):
    def generate(context, builder, signature, args):
        make(builder, *args)
        return context.get_dummy_value()

    return generate


@intrinsic
def splat(typing, x):
    return vector(f32), _emit(lanes.splat)


@intrinsic
def add(typing, a, b):
    return vector(vector, vector), _emit(lambda builder, a, b: builder.fadd(a, b))


@intrinsic
def sub(typing, a, b):
    return vector(vector, vector), _emit(lambda builder, a, b: builder.fsub(a, b))


@intrinsic
def mul(typing, a, b):
    return vector(vector, vector), _emit(lambda builder, a, b: builder.fmul(a, b))


@intrinsic
def div(typing, a, b):
    return vector(vector, vector), _emit(lambda builder, a, b: builder.fdiv(a, b))


@intrinsic
def sqrt(typing, a):
    return vector(vector), _emit(lanes.sqrt)


@intrinsic
def fma(typing, a, b, c):
    """a * b + c."""
    return vector(vector, vector, vector), _emit(lanes.fma)


@intrinsic
def maximum(typing, a, b):
    return vector(vector, vector), _emit(lanes.maximum)


@intrinsic
def raised(typing, a, b, slack):
    """b in lanes where it is more than slack above a, else a."""

    def make(builder, a, b, slack):
        limit = builder.fadd(a, lanes.splat(builder, slack))
        return builder.select(builder.fcmp_ordered("ogt", b, limit), b, a)

    return vector(vector, vector, f32), _emit(make)


@intrinsic
def exp2(typing, a):
    return vector(vector), _emit(lanes.exp2)


@intrinsic
def exp2_half(typing, a):
    """2 ** a as `exp2`, to 16 bits."""
    return vector(vector), _emit(lambda builder, a: lanes.exp2(builder, a, lanes.EXP2_HALF))


@intrinsic
def exp2_short(typing, a):
    """2 ** a to the precision of bfloat16, on CPUs with AVX-512 alone."""
    return vector(vector), _emit(lanes.exp2_short)


@intrinsic
def are_equal(typing, a, b):
    """Whether all lanes are."""

    def make(builder, a, b):
        same = builder.bitcast(builder.fcmp_ordered("oeq", a, b), lanes.I16)
        return builder.icmp_signed("==", same, ir.Constant(lanes.I16, -1))

    return types.boolean(vector, vector), _emit(make)


@intrinsic
def first_lane(typing, a):
    return f32(vector), _emit(lambda builder, a: builder.extract_element(a, I32(0)))


@intrinsic
def sum_lanes(typing, a):
    def make(builder, a):
        return lanes.fold(builder, a, builder.fadd)

    return f32(vector), _emit(make)


@intrinsic
def sum_rows(typing, address):
    """The sums of sixteen float32 vectors that lie one after the other, one a lane."""

    def make(builder, address):
        sums = [lanes.load_floats(builder, address, I64(LANES * i)) for i in range(LANES)]
        for width in (16, 8, 4, 2):
            sums = lanes.add_neighbours(builder, sums, width)
        return sums[0]

    return vector(i64), _emit(make)


@intrinsic
def max_lanes(typing, a):
    def make(builder, a):
        return lanes.fold(builder, a, lambda x, y: lanes.maximum(builder, x, y))

    return f32(vector), _emit(make)


@intrinsic
def mark_nan(typing, marks, a):
    """marks, with NaN in every lane in which a has NaN."""

    def make(builder, marks, a):
        is_nan = builder.sext(builder.fcmp_unordered("uno", a, a), lanes.WORDS)
        marked = builder.or_(builder.bitcast(marks, lanes.WORDS), is_nan)
        return builder.bitcast(marked, lanes.VECTOR)

    return vector(vector, vector), _emit(make)


@intrinsic
def find_lane(typing, a, x):
    """The first lane that equals x, 16 if there is none."""

    def make(builder, a, x):
        equal = builder.fcmp_ordered("oeq", a, lanes.splat(builder, x))
        bits = builder.zext(builder.bitcast(equal, I16), I64)
        stop = builder.or_(bits, I64(1 << LANES))
        return builder.cttz(stop, ir.Constant(ir.IntType(1), 1))

    return i64(vector, f32), _emit(make)


@intrinsic
def keep_between(typing, a, low, high, fill):
    """a with all lanes but low .. high - 1 set to fill."""

    def make(builder, a, low, high, fill):
        number = ir.Constant(lanes.WORDS, list(range(LANES)))
        kept = builder.and_(
            builder.icmp_signed(">=", number, lanes.splat_word(builder, low)),
            builder.icmp_signed("<", number, lanes.splat_word(builder, high)),
        )
        return builder.select(kept, a, lanes.splat(builder, fill))

    return vector(vector, i64, i64, f32), _emit(make)


@intrinsic
def keep_in_sight(typing, a, positions, index, token, reach, fill):
    """a with fill in all lanes but those whose position p sees the token: p - reach < token <= p.

    positions: address of int32, those of the lanes from `index` on.
    """

    def make(builder, a, positions, index, token, reach, fill):
        place = lanes.pointer(builder, positions, index, 4, lanes.WORDS)
        own = builder.load(place, align=4)
        behind = builder.sub(own, lanes.splat_word(builder, token))
        seen = builder.and_(
            builder.icmp_signed(">=", behind, lanes.words(0)),
            builder.icmp_signed("<", behind, lanes.splat_word(builder, reach)),
        )
        return builder.select(seen, a, lanes.splat(builder, fill))

    return vector(vector, i64, i64, i64, i64, f32), _emit(make)


@intrinsic
def load(typing, format, address, index):
    """Elements index .. index + 15 of the array at `address`."""
    kind, item_bytes = MEMORY[format]

    def make(builder, _, address, index):
        source = lanes.pointer(builder, address, index, item_bytes, kind)
        return lanes.widen(builder, builder.load(source, align=item_bytes))

    return vector(format, i64, i64), _emit(make)


@intrinsic
def load_some(typing, format, address, index, count):
    """The first `count` (below 16) elements; the other lanes are zero."""
    kind, item_bytes = MEMORY[format]

    def make(builder, _, address, index, count):
        room = cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, None), room)
        source = lanes.pointer(builder, address, index, item_bytes, kind)
        lanes.copy_bytes(builder, room, source, builder.mul(count, I64(item_bytes)))
        return lanes.widen(builder, builder.load(room))

    return vector(format, i64, i64, i64), _emit(make)


@intrinsic
def store(typing, format, address, index, a):
    kind, item_bytes = MEMORY[format]

    def make(builder, _, address, index, a):
        target = lanes.pointer(builder, address, index, item_bytes, kind)
        builder.store(lanes.narrow(builder, kind, a), target, align=item_bytes)

    return types.none(format, i64, i64, vector), _emit_void(make)


@intrinsic
def store_some(typing, format, address, index, count, a):
    kind, item_bytes = MEMORY[format]

    def make(builder, _, address, index, count, a):
        room = cgutils.alloca_once(builder, kind)
        builder.store(lanes.narrow(builder, kind, a), room)
        target = lanes.pointer(builder, address, index, item_bytes, kind)
        lanes.copy_bytes(builder, target, room, builder.mul(count, I64(item_bytes)))

    return types.none(format, i64, i64, i64, vector), _emit_void(make)


@intrinsic
def rounded(typing, format, a):
    """a as it would be read back after a store."""
    kind, _ = MEMORY[format]

    def make(builder, _, a):
        return lanes.widen(builder, lanes.narrow(builder, kind, a))

    return vector(format, vector), _emit(make)
