"""Scores of sixteen rows to the shares that tokens have in the outputs (integer_softmax.py).

One register of rows after the other: with both at once sums and constants do not fit the registers
of AVX2, and LLVM carries sums through memory.
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import EXP2_HALF, F32, I32, I64, LANES
from octavo.kernels.cpu.registers import REGISTER, WIDTH, ZERO
from octavo.kernels.cpu.vector import i64, vector

_WORDS = ir.VectorType(I32, WIDTH)


def _greater(builder, a, b):
    """Of numbers that are not negative, which order as their bits do."""
    a, b = (builder.bitcast(v, _WORDS) for v in (a, b))
    return builder.bitcast(builder.select(builder.icmp_signed(">", a, b), a, b), REGISTER)


def _share(builder, scores, place, scale, minus_top, value_scale):
    """(weight, share) of one register of scores; the share takes their place."""
    power = registers.fma(builder, registers.load(builder, scores, place), scale, minus_top)
    weight = lanes.exp2(builder, power, EXP2_HALF)
    share = builder.fmul(weight, registers.splat(builder, value_scale))
    registers.store(builder, scores, place, share)
    return weight, share


def _share_rows(builder, args, first, scale, minus_top):
    """[sum of weights, sum of shares, greatest share] of rows first .. first + WIDTH - 1."""
    scores, num_tokens, _, _, value_scales = args
    sums = [cgutils.alloca_once(builder, REGISTER) for _ in range(3)]
    for s in sums:
        builder.store(ZERO, s)
    with cgutils.for_range(builder, num_tokens) as loop:
        place = builder.add(builder.mul(loop.index, I64(LANES)), I64(first))
        value_scale = builder.load(lanes.pointer(builder, value_scales, loop.index, 4, F32))
        weight, share = _share(builder, scores, place, scale, minus_top, value_scale)
        added, weighted, greatest = (builder.load(s) for s in sums)
        builder.store(builder.fadd(added, weight), sums[0])
        builder.store(builder.fadd(weighted, share), sums[1])
        builder.store(_greater(builder, share, greatest), sums[2])
    return [builder.load(s) for s in sums]


@intrinsic
def share_weights(typing, scores, num_tokens, scales, minus_top, value_scales):
    """Scores [num_tokens, 16] to shares, in place: 2 ** (score * scale + minus_top) * value_scale.

    num_tokens is even. Returns (sum of weights, sum of shares, greatest share) of each row.
    """

    def generate(context, builder, signature, args):
        of_rows = [
            _share_rows(builder, args, WIDTH * part, scale, minus_top)
            for part, (scale, minus_top) in enumerate(
                zip(*(registers.parts(builder, v) for v in args[2:4]), strict=True)
            )
        ]
        results = [registers.joined(builder, list(sums)) for sums in zip(*of_rows, strict=True)]
        return cgutils.pack_array(builder, results)

    return types.UniTuple(vector, 3)(i64, i64, vector, vector, i64), generate
