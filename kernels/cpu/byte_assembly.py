"""Signed bytes with AVX2: one or two rows by a strip of 32 outputs, in assembly.

AVX2 multiplies unsigned bytes by signed ones (vpmaddubsw), so a row's sizes are multiplied by the
weights with all bits turned where the row is below 0:

    |a| * (w ^ signs)  =  a * w, less |a| where a < 0, for ~w = -w - 1

What is missing is the same for all outputs: sums begin with it. A register of weights then costs
an exclusive or, which any of four pipes takes, vpmaddubsw, vpmaddwd and an addition; vpsignb would
ask for pipes that products want. LLVM's own order of these instructions, and its choice of what
stays in registers, takes a sixth longer.

    ymm0 .. 7  sums     8  sizes, level     9  signs, level     10  products     11  ones, factors
    12 .. 15   totals of the first row; those of the second are in memory
"""

from typing import Any

from llvmlite import binding, ir

from octavo.kernels.cpu.byte_dot import GROUP, QUAD, STEPS
from octavo.kernels.cpu.lanes import I64, LINE

ROWS, VECTORS, BYTES = 2, 4, 32  # bytes: of a register
PARTS = 2  # of a row: all sizes of a group, then all signs
SCALES = GROUP * VECTORS * BYTES // QUAD  # where they stand in a block
BLOCK = SCALES + VECTORS * BYTES // 2
FETCHED = 4  # cache lines a group
_CLOBBERED = [f"~{{ymm{i}}}" for i in range(16)] + ["~{memory}", "~{flags}"]
# Operands; the first five go forward.
_ROW, _LEVELS, _WEIGHTS, _AHEAD, _LEFT = (f"${i}" for i in range(5))
_STRIDE, _SPREAD, _SECOND_SPREAD, _SUMS, _SUMS_STRIDE = (f"${i}" for i in range(10, 15))
binding.initialize_native_asmparser()


def _row(address: str, stride: str, r: int) -> str:
    return f"({address},{stride})" if r else f"({address})"


def _step(step: int, rows: int) -> list[str]:
    """Four products an output."""
    lines = []
    for r in range(rows):
        place, first = _row(_ROW, _STRIDE, r), VECTORS * r
        lines += [f"vpbroadcastd {QUAD * step}{place}, %ymm8"]
        lines += [f"vpbroadcastd {GROUP + QUAD * step}{place}, %ymm9"]
        for v in range(VECTORS):
            # All sums of a row begin with what its last one holds.
            before = first + (v if step else VECTORS - 1)
            lines += [
                f"vpxor {BYTES * (VECTORS * step + v)}({_WEIGHTS}), %ymm9, %ymm10",
                "vpmaddubsw %ymm10, %ymm8, %ymm10",
                "vpmaddwd %ymm11, %ymm10, %ymm10",
                f"vpaddd %ymm{before}, %ymm10, %ymm{first + v}",
            ]
    return lines


def _add_to_totals(rows: int) -> list[str]:
    """total += sum * (level * scale)."""
    lines = [f"vbroadcastss {_row(_LEVELS, _STRIDE, r)}, %ymm{8 + r}" for r in range(rows)]
    lines += [f"vcvtdq2ps %ymm{i}, %ymm{i}" for i in range(rows * VECTORS)]
    for v in range(VECTORS):
        lines += [
            f"vcvtph2ps {SCALES + BYTES // 2 * v}({_WEIGHTS}), %ymm10",
            "vmulps %ymm10, %ymm8, %ymm11",
            f"vfmadd231ps %ymm11, %ymm{v}, %ymm{12 + v}",
        ]
        if rows > 1:
            total = f"{BYTES * v}{_row(_SUMS, _SUMS_STRIDE, 1)}"
            lines += [
                "vmulps %ymm10, %ymm9, %ymm10",
                f"vfmadd213ps {total}, %ymm{VECTORS + v}, %ymm10",
                f"vmovups %ymm10, {total}",
            ]
    return lines


def _text(rows: int) -> str:
    lines = [f"vmovups {BYTES * v}({_SUMS}), %ymm{12 + v}" for v in range(VECTORS)]
    lines += ["1:", "vpcmpeqw %ymm11, %ymm11, %ymm11", "vpabsw %ymm11, %ymm11"]
    lines += [f"prefetcht0 {LINE * i}({_AHEAD})" for i in range(FETCHED)]
    for r, spread in enumerate((_SPREAD, _SECOND_SPREAD)[:rows]):
        lines += [f"vpbroadcastd ({_LEVELS},{spread}), %ymm{VECTORS * (r + 1) - 1}"]
    for step in range(STEPS):
        lines += _step(step, rows)
    lines += _add_to_totals(rows)
    forward = {_ROW: PARTS * GROUP, _LEVELS: 4, _WEIGHTS: BLOCK, _AHEAD: FETCHED * LINE}
    lines += [f"addq $${size}, {place}" for place, size in forward.items()]
    lines += [f"decq {_LEFT}", "jnz 1b"]
    lines += [f"vmovups %ymm{12 + v}, {BYTES * v}({_SUMS})" for v in range(VECTORS)]
    return "\n".join(lines)


def emit_panel(builder: Any, args: Any, rows: int) -> None:
    """`byte_panel.quantized_panel` of this number of rows, 1 or 2, and a group at least."""
    row, levels, spread, stride, weights, groups, sums, sums_stride, ahead = args
    forward = [row, levels, weights, ahead, groups]
    fixed = [stride, spread, builder.add(spread, stride), sums, sums_stride]
    places = ["=&r"] * 5 + [str(i) for i in range(5)] + ["r"] * 5 + _CLOBBERED
    kind = ir.FunctionType(ir.LiteralStructType([I64] * 5), [I64] * 10)
    builder.asm(kind, _text(rows), ",".join(places), forward + fixed, side_effect=True)
