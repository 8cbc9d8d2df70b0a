"""A register-blocked product: up to six rows of float32 and panels of sixteen outputs.

    C[rows, 16 * width] = A[rows, depth] x B[depth, 16] of `width` panels

    B by the dtype of the weights      a step holds
    float32, float16                   16 values of one depth
    bfloat16                           16 pairs (depth, depth + 1): each is one operation on the way
                                       to float32, as a plain bfloat16 would be two
    PAIRS                              the same, but A is bfloat16 too, and one instruction
                                       (AVX512-BF16) adds both products of a pair

Other weights become float32 in registers. A sum is one chain of FMAs over the depth, from zero,
whatever the number of rows or panels: its bits depend on the row and the output alone. Registers
hold rows * width sums: 6 x 1 fill the sixteen of AVX2 (a vector is two; pairs need two more, so
5 x 1: at 512 rows 78 GFLOP/s against 57), 6 x 4 the thirty-two of AVX-512. While a panel is
multiplied, the one that follows is fetched: at 8 rows 64 GFLOP/s instead of 54. Not so with AVX2
for one row, which is as fast as memory: four panels that lie far apart are read faster without.
"""

import numpy as np
import torch
from llvmlite import binding, ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES
from octavo.kernels.cpu.pair_dot import dot_pairs
from octavo.kernels.cpu.vector import FORMATS

i64 = types.int64
PAIRS = np.uint32(0)
PANEL_ROWS = 6
WIDE = 4
IS_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
# Panels at once for each number of rows: enough sums to hide an FMA's latency, or one panel, which
# then stays in the L1 cache for the next rows.
WIDTHS = {r: WIDE if IS_WIDE else {1: 4, 2: 2}.get(r, 1) for r in range(1, PANEL_ROWS + 1)}


def most_rows(format: np.generic) -> int:
    """Rows of a tile whose sums stay in registers."""
    return PANEL_ROWS - 1 if format is FORMATS[torch.bfloat16] and not IS_WIDE else PANEL_ROWS


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """weight [N, K] as [panels, depth, 16], or [panels, depth / 2, 16, 2]; padded with zeros."""
    size, depth = weight.shape
    at_once = depths_of_step(weight.dtype)
    padding = (0, -depth % at_once, 0, -size % LANES)
    padded = torch.nn.functional.pad(weight.detach(), padding)
    steps = padded.shape[1] // at_once
    return padded.view(-1, LANES, steps, at_once).transpose(1, 2).contiguous()


def depths_of_step(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.bfloat16 else 1


def _columns(builder, format, place):
    """A step of one panel as float32: [(depth offset, sixteen columns)]."""
    if format in (types.uint16, types.uint32):
        pairs = builder.load(builder.inttoptr(place, lanes.WORDS.as_pointer()), align=4)
        if format == types.uint32:
            return [builder.bitcast(pairs, lanes.VECTOR)]
        low = builder.shl(pairs, lanes.words(16))
        high = builder.and_(pairs, lanes.words(0xFFFF0000))
        return [builder.bitcast(half, lanes.VECTOR) for half in (low, high)]
    kind, item_bytes = lanes.MEMORY[format]
    raw = builder.load(builder.inttoptr(place, kind.as_pointer()), align=item_bytes)
    return [lanes.widen(builder, raw)]


def _step_bytes(format):
    """(bytes of a step, elements of A it is multiplied with)"""
    if format in (types.uint16, types.uint32):
        return 4 * LANES, 2 if format == types.uint16 else 1
    return lanes.MEMORY[format][1] * LANES, 1


def _emit_tile(builder, format, operands, count, width):
    a, a_stride, b, panel_bytes, depth, c = operands
    step_bytes, depths = _step_bytes(format)
    add = dot_pairs if format == types.uint32 else lanes.fma
    rows = [builder.add(a, builder.mul(a_stride, I64(r))) for r in range(count)]
    panels = [builder.add(b, builder.mul(panel_bytes, I64(v))) for v in range(width)]
    span = builder.mul(panel_bytes, I64(width))
    zero = ir.Constant(lanes.VECTOR, None)
    sums = [
        [cgutils.alloca_once(builder, lanes.VECTOR) for _ in range(width)] for _ in range(count)
    ]
    for row in sums:
        for place in row:
            builder.store(zero, place)
    steps = builder.udiv(builder.add(depth, I64(depths - 1)), I64(depths))
    with cgutils.for_range(builder, steps) as loop:
        offset = builder.mul(loop.index, I64(step_bytes))
        places = [builder.add(panel, offset) for panel in panels]
        if IS_WIDE or count > 1:
            for place in places:
                lanes.fetch(builder, builder.add(place, span))
        columns = [_columns(builder, format, place) for place in places]
        first = builder.mul(loop.index, I64(depths))
        for d in range(depths):
            index = builder.add(first, I64(d))
            for r in range(count):
                value = builder.load(lanes.pointer(builder, rows[r], index, 4, F32))
                factor = lanes.splat(builder, value)
                for v in range(width):
                    total = builder.load(sums[r][v])
                    builder.store(add(builder, factor, columns[v][d], total), sums[r][v])
    for r in range(count):
        for v in range(width):
            index = I64((r * width + v) * LANES)
            lanes.store_floats(builder, c, index, builder.load(sums[r][v]))


@intrinsic
def float_panel(typing, format, a, a_stride, b, panel_bytes, depth, c, count, width):
    """C of `count` (1 to 6) rows and `width` (1 or WIDTHS[count]) panels.

    format: of b, see pack_panels, or PAIRS; a: rows of float32, readable, and finite, to the end of
    the last step, or of pairs, whose number is the depth then; strides in bytes; c: [count, width *
    16] float32. The panels that follow are fetched.
    """

    def generate(context, builder, signature, args):
        _, *operands, count, width = args
        for rows in range(1, PANEL_ROWS + 1):
            for panels in sorted({1, WIDTHS[rows]}):
                chosen = builder.and_(
                    builder.icmp_signed("==", count, I64(rows)),
                    builder.icmp_signed("==", width, I64(panels)),
                )
                with builder.if_then(chosen):
                    _emit_tile(builder, format, operands, rows, panels)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64, i64, i64, i64, i64), generate
