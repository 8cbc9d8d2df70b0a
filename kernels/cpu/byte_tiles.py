"""A product of quantised rows on the CPU's matrix unit: up to sixteen rows and sixteen outputs.

    for each group of 32 products:
        A [rows, 32] bytes x B [8][16][4] bytes  --tile-->  sums [16, 16] int32
        totals [16, 16] float32 += level[row] * scale[output] * sums, in registers
                                   (+ level * sum of A's row * minimum, if half bytes)

Blocks are those of byte_panel, a quarter of whose strip is a tile; half bytes are unpacked first.
Sums are the same integers, and totals are added in the same order with the same operations: bits
are those of `quantized_panel`. Two groups take turns, so that tiles work while vectors do.
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import amx, lanes
from octavo.kernels.cpu.byte_panel import GROUP, QUAD, STEPS, STRIP
from octavo.kernels.cpu.jit import inlined, intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES
from octavo.kernels.cpu.memory import write_i64
from octavo.kernels.cpu.vector import vector

i64 = types.int64
ROWS = amx.TILE_ROWS
SUMS_BYTES = ROWS * LANES * 4
ROOM_BYTES = 64 + 2 * SUMS_BYTES
STEP_BYTES = STRIP * QUAD
SCALES = GROUP * STRIP  # where they stand in a block of bytes
MINIMA = SCALES + 2 * STRIP
UNPACKED_BLOCK = MINIMA + 2 * STRIP
_TOTALS = types.UniTuple(vector, ROWS)
# Tiles: 0 and 1 are sums, 2 and 3 rows, 4 and 5 weights.
_BYTES_LOW, _BYTES_HIGH = 0x0020_0020_0040_0040, 0x0040_0040
_SUM_ROWS, _WEIGHT_ROWS = 0x01_01_01_01, STEPS << 32 | STEPS << 40


@inlined
def configure(config, count):
    """Make tiles fit `count` rows; config: 64 bytes to write to."""
    write_i64(config, 0, 1)
    write_i64(config, 1, 0)
    write_i64(config, 2, _BYTES_LOW)
    write_i64(config, 3, _BYTES_HIGH)
    write_i64(config, 4, 0)
    write_i64(config, 5, 0)
    write_i64(config, 6, count * _SUM_ROWS + _WEIGHT_ROWS)
    write_i64(config, 7, 0)
    amx.configure_from(config)


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


@intrinsic
def _zeros(typing):
    def generate(context, builder, signature, args):
        return cgutils.pack_array(builder, [ir.Constant(lanes.VECTOR, None)] * ROWS)

    return _TOTALS(), generate


@intrinsic
def _add_sums(typing, totals, sums, levels, stride, scales):
    """totals + sums [16, 16] * levels * scales; levels: that of the first row."""

    def generate(context, builder, signature, args):
        totals, sums, levels, stride, scales = args
        factors = builder.fpext(_load(builder, scales, lanes.HALVES), lanes.VECTOR)
        result = []
        for r, total in enumerate(cgutils.unpack_tuple(builder, totals, ROWS)):
            place = builder.add(levels, builder.mul(stride, I64(r)))
            level = lanes.splat(builder, builder.load(builder.inttoptr(place, F32.as_pointer())))
            whole = _load(builder, builder.add(sums, I64(r * LANES * 4)), lanes.WORDS)
            whole = builder.sitofp(whole, lanes.VECTOR)
            result.append(lanes.fma(builder, whole, builder.fmul(level, factors), total))
        return cgutils.pack_array(builder, result)

    return _TOTALS(_TOTALS, i64, i64, i64, i64), generate
