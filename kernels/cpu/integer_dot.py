"""LLVM code for products of pairs of 16-bit integers, on CPUs with AVX2 and nothing for bfloat16.

One instruction multiplies sixteen numbers by sixteen and adds neighbours, into eight sums of 32
bits: twice the products of a float32 instruction. Eight pairs are carried as <8 x float> whose bits
they are.
"""

from llvmlite import ir

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.byte_dot import HAS_AVX2
from octavo.kernels.cpu.lanes import I16, I32
from octavo.kernels.cpu.registers import REGISTER, WIDTH

HAS_INTEGERS = HAS_AVX2 and WIDTH == 8
_PAIRS = ir.VectorType(I16, 2 * WIDTH)
_SUMS = ir.VectorType(I32, WIDTH)


def dot_integers(builder, a, b, c):
    """c + a * b, both products of each pair added; c and the result are bits of int32."""
    a, b = (builder.bitcast(v, _PAIRS) for v in (a, b))
    products = lanes.call(builder, "llvm.x86.avx2.pmadd.wd", _SUMS, a, b)
    return builder.bitcast(builder.add(builder.bitcast(c, _SUMS), products), REGISTER)


def to_float(builder, sums):
    """int32 sums as float32."""
    return builder.sitofp(builder.bitcast(sums, _SUMS), registers.REGISTER)


def pair_integers(builder, first, second):
    """Two <16 x float> to which `lanes.ROUNDER` was added as pairs of the nearest integers."""
    low = builder.and_(builder.bitcast(first, lanes.WORDS), lanes.words(0xFFFF))
    high = builder.shl(builder.bitcast(second, lanes.WORDS), lanes.words(16))
    return builder.bitcast(builder.or_(low, high), lanes.VECTOR)
