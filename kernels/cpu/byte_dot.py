"""Dot products of four bytes in each 32-bit lane, made of what the CPU has.

    CPU                  lanes   bytes x bytes                        half bytes x bytes
    AVX512-VNNI          16      vpdpbusd of w + 128                  vpdpbusd
    AVX-VNNI              8      vpdpbusd of |w| and sign(w) * a      vpdpbusd
    AVX2                  8      byte_assembly.py                     vpmaddubsw, summed in 16 bits
    any other             8      products of 16-bit pairs             the same

vpdpbusd and vpmaddubsw take one unsigned operand, and vpmaddubsw has 16 bits for two products: it
fits the 127 * 128 of bytes twice, and the 15 * 127 of half bytes sixteen times. So all of them give
the same integers.
"""

from typing import Any, Protocol

from llvmlite import binding, ir

from octavo.kernels.cpu.lanes import F32, I16, I32, call
from octavo.kernels.cpu.registers import FEATURES, in_order

I8 = ir.IntType(8)
OFFSET = 128  # makes a signed byte unsigned
GROUP = 32  # products that share a level and a scale
QUAD = 4  # bytes of one depth step
STEPS = GROUP // QUAD
HAS_VNNI_512 = "+avx512vnni" in FEATURES
HAS_VNNI_256 = "+avxvnni" in FEATURES
HAS_AVX2 = "+avx2" in FEATURES
HAS_HALVES = "+f16c" in FEATURES
HAS_VNNI = HAS_VNNI_512 or HAS_VNNI_256
HAS_ASSEMBLY = HAS_AVX2 and HAS_HALVES and "+fma" in FEATURES and not HAS_VNNI
WIDTH = 16 if HAS_VNNI_512 else 8  # 32-bit lanes of a register
BYTES = ir.VectorType(I8, 4 * WIDTH)
SHORTS = ir.VectorType(I16, 2 * WIDTH)
WORDS = ir.VectorType(I32, WIDTH)
FLOATS = ir.VectorType(F32, WIDTH)
WIDE = ir.VectorType(I32, 2 * WIDTH)


class Dot(Protocol):
    """How the bytes of one depth step are added to a register of sums."""

    is_offset: bool  # whether 128 was added to each byte of the weights

    def start(self, builder: Any, words: Any) -> Any:
        """Sums that begin with words, WIDTH integers."""

    def operand(self, weights: Any, builder: Any) -> Any:
        """What is made of a register of weights once for all rows."""

    def add(self, builder: Any, sums: Any, operand: Any, quad: Any) -> Any:
        """sums + operand * quad; quad has the same four signed bytes in all lanes."""

    def after_step(self, builder: Any, sums: list[Any]) -> list[Any]:
        """All sums of a panel, when a step has been added to each."""

    def words(self, builder: Any, sums: Any) -> Any:
        """The sums as WIDTH integers."""


def filled(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _dot_unsigned(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """The instruction of AVX512-VNNI and AVX-VNNI."""
    if binding.llvm_version_info[0] < 22:
        unsigned, signed = (builder.bitcast(v, WORDS) for v in (unsigned, signed))
    name = f"llvm.x86.avx512.vpdpbusd.{32 * WIDTH}"
    return call(builder, name, WORDS, sums, unsigned, signed)


def _pairs(builder: Any, unsigned: Any, signed: Any) -> Any:
    return call(builder, "llvm.x86.avx2.pmadd.ub.sw", SHORTS, unsigned, signed)


def _sum_pairs(builder: Any, shorts: Any) -> Any:
    return call(builder, "llvm.x86.avx2.pmadd.wd", WORDS, shorts, filled(SHORTS, 1))


def _with_sign(builder: Any, quad: Any, weights: Any) -> Any:
    """quad * sign(weights)."""
    return call(builder, "llvm.x86.avx2.psign.b", BYTES, quad, weights)


class _WordSums:
    is_offset = False

    def start(self, builder: Any, words: Any) -> Any:
        return words

    def operand(self, weights: Any, builder: Any) -> Any:
        return weights

    def after_step(self, builder: Any, sums: list[Any]) -> list[Any]:
        return sums

    def words(self, builder: Any, sums: Any) -> Any:
        return sums


class _UnsignedDot(_WordSums):
    """Half bytes, or bytes with an offset, by one instruction."""

    def __init__(self, is_offset: bool) -> None:
        self.is_offset = is_offset

    def add(self, builder: Any, sums: Any, operand: Any, quad: Any) -> Any:
        return _dot_unsigned(builder, sums, operand, quad)


class _SignedDot(_WordSums):
    """Signed bytes by one instruction that wants one of them unsigned."""

    def operand(self, weights: Any, builder: Any) -> Any:
        size = call(builder, f"llvm.abs.v{4 * WIDTH}i8", BYTES, weights, ir.IntType(1)(0))
        return size, weights

    def add(self, builder: Any, sums: Any, operand: Any, quad: Any) -> Any:
        size, weights = operand
        return _dot_unsigned(builder, sums, size, _with_sign(builder, quad, weights))


class _ShortDot:
    """Half bytes: eight steps are summed in 16 bits, by a cheaper addition."""

    is_offset = False

    def start(self, builder: Any, words: Any) -> Any:
        return filled(SHORTS, 0)

    def operand(self, weights: Any, builder: Any) -> Any:
        return weights

    def add(self, builder: Any, sums: Any, operand: Any, quad: Any) -> Any:
        return builder.add(sums, _pairs(builder, operand, quad))

    def after_step(self, builder: Any, sums: list[Any]) -> list[Any]:
        return list(in_order(builder, sums))

    def words(self, builder: Any, sums: Any) -> Any:
        return _sum_pairs(builder, sums)


class _PlainDot(_WordSums):
    """Even and odd bytes as products of 16-bit pairs, for which most CPUs have something."""

    def add(self, builder: Any, sums: Any, operand: Any, quad: Any) -> Any:
        eight = filled(SHORTS, 8)
        w, a = (builder.bitcast(v, SHORTS) for v in (operand, quad))
        even = [builder.ashr(builder.shl(v, eight), eight) for v in (w, a)]
        odd = [builder.ashr(v, eight) for v in (w, a)]
        for pair in (even, odd):
            products = builder.mul(*(builder.sext(v, WIDE) for v in pair))
            for first in (0, 1):
                order = ir.Constant(WORDS, [2 * i + first for i in range(WIDTH)])
                sums = builder.add(sums, builder.shuffle_vector(products, products, order))
        return sums


def _byte_dot() -> Dot:
    if HAS_VNNI_512:
        return _UnsignedDot(is_offset=True)
    return _SignedDot() if HAS_VNNI_256 else _PlainDot()


def _nibble_dot() -> Dot:
    if HAS_VNNI:
        return _UnsignedDot(is_offset=False)
    return _ShortDot() if HAS_AVX2 else _PlainDot()


BYTE_DOT = _byte_dot()
NIBBLE_DOT = _nibble_dot()
