"""Query heads by rows of K with AVX2, in assembly: sums, a part of each query and of a row fit.

LLVM keeps rows and sums in memory here, and a sum that goes through memory is late for its next
addition: attention to K takes a third longer.

    ymm0 .. 11   sums of (head, row)     12 .. 14   a part of the queries     15   of a row, widened
"""

from typing import Any

from llvmlite import binding, ir
from numba.core import types

from octavo.kernels.cpu.lanes import I64
from octavo.kernels.cpu.registers import FEATURES, REGISTER, SPLIT, WIDTH

HAS_ASSEMBLY = WIDTH == 8 and {"+avx2", "+fma", "+f16c"} <= FEATURES
_BYTES = 4 * WIDTH  # of a register
_QUERY, _ROW = 12, 15  # their registers
# Bytes of sixteen elements of a row.
_ROW_BYTES = {types.float32: 64, types.uint16: 32, types.int16: 32}
binding.initialize_native_asmparser()


def _widen(format: Any, part: int, place: str) -> list[str]:
    """A part of a row to its register, in the order of `registers.arrangement`."""
    row = f"%ymm{_ROW}"
    if format == types.uint16:
        if part == 0:
            return [f"vmovdqu {place}, {row}", f"vpslld $$16, {row}, {row}"]
        return [f"vpxor {row}, {row}, {row}", f"vpblendw $$0xAA, {place}, {row}, {row}"]
    offset = part * _ROW_BYTES[format] // SPLIT
    return [f"{'vcvtph2ps' if format == types.int16 else 'vmovups'} {offset}{place}, {row}"]


def _text(format: Any, num_queries: int, num_rows: int) -> str:
    """Operands: sums, where a row and a query are, then what is read: rows, queries, their end."""
    num_sums = num_queries * num_rows
    at_row, at_query = f"${num_sums}", f"${num_sums + 1}"
    first = num_sums + 2
    rows = [f"${first + t}" for t in range(num_rows)]
    queries = [f"${first + num_rows + h}" for h in range(num_queries)]
    end = f"${first + num_rows + num_queries}"
    lines = [f"vxorps ${i}, ${i}, ${i}" for i in range(num_sums)]
    lines += [f"xorq {at_row}, {at_row}"]
    lines += [f"xorq {at_query}, {at_query}", "1:"]
    for part in range(SPLIT):
        for h, query in enumerate(queries):
            lines += [f"vmovups {part * _BYTES}({query},{at_query}), %ymm{_QUERY + h}"]
        for t, row in enumerate(rows):
            lines += _widen(format, part, f"({row},{at_row})")
            for h in range(num_queries):
                lines += [f"vfmadd231ps %ymm{_ROW}, %ymm{_QUERY + h}, ${h * num_rows + t}"]
    lines += [f"addq $${_ROW_BYTES[format]}, {at_row}", f"addq $${SPLIT * _BYTES}, {at_query}"]
    lines += [f"cmpq {end}, {at_query}", "jne 1b"]
    return "\n".join(lines)


def emit_dots(builder: Any, format: Any, rows: Any, queries: Any, width: Any) -> list[Any]:
    """Products of each query with each row, a query's after the other, as sums still spread.

    rows: addresses; queries: addresses of float32 [width]; width: a multiple of 16.
    """
    num_sums = len(rows) * len(queries)
    end = builder.shl(width, I64(2))
    values = [*rows, *queries, end]
    kinds = [REGISTER] * num_sums + [I64] * 2
    places = [f"=&{{ymm{i}}}" for i in range(num_sums)] + ["=&r"] * 2 + ["r"] * len(values)
    places += [f"~{{ymm{i}}}" for i in range(num_sums, 16)] + ["~{memory}", "~{flags}"]
    kind = ir.FunctionType(ir.LiteralStructType(kinds), [I64] * len(values))
    text = _text(format, len(queries), len(rows))
    result = builder.asm(kind, text, ",".join(places), values, side_effect=True)
    return [builder.extract_value(result, i) for i in range(num_sums)]
