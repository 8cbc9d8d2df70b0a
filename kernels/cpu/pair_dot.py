"""LLVM code for AVX512-BF16: products of bfloat16 pairs, and sums rounded to bfloat16.

Sixteen pairs are carried as <16 x float> whose bits they are. Subnormal numbers count as zero.
"""

from llvmlite import binding, ir

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.lanes import LANES

HAS_PAIRS = bool(binding.get_host_cpu_features().get("avx512bf16"))


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat)

    def __hash__(self):
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)


def dot_pairs(builder, a, b, c):
    """c + a * b, both products of each pair added in float32."""
    a, b = (builder.bitcast(v, _PAIRS) for v in (a, b))
    return lanes.call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", lanes.VECTOR, c, a, b)


def round_two(builder, first, second):
    """Two <16 x float> as thirty-two bfloat16, to nearest even."""
    return lanes.call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _PAIRS, second, first)
