"""A product on the CPU's matrix unit: up to 32 rows of bfloat16 and panels of sixteen outputs.

    C[rows, 16 * width] = A[rows, 32 * steps] x B[32 * steps, 16] of `width` panels

    rows     tiles of A   panels   tiles of C
    1 - 16            1        4            4
    17 - 32           2        2            4

A's rows are read in place; a step of a panel, 16 pairs of depths for 16 outputs, is a tile of B as
it lies. Tiles of A and C have as many rows as there are, so few rows take little time. A sum is one
chain of steps from zero, whatever the number of rows or panels: its bits depend on the row and the
output alone. Within a step the products of even depths and those of odd ones are two chains of
FMAs, which are added to each other and then to the sum (float32, subnormal numbers are zero).
"""

from numba.core import cgutils, types

from octavo.kernels.cpu import amx, lanes
from octavo.kernels.cpu.jit import inlined, intrinsic
from octavo.kernels.cpu.lanes import I64, LANES
from octavo.kernels.cpu.memory import prefetch_far, write_i64
from octavo.kernels.cpu.pair_dot import round_two

DEPTHS = 32  # of a step
TILE_BYTES = amx.TILE_ROWS * amx.TILE_BYTES
CONFIG_BYTES = 64
MOST_ROWS = 2 * amx.TILE_ROWS
WIDE = 4  # panels at once
# Tiles: 0 to 3 are C (0 and 1 of the first rows), 4 and 5 A, 6 and 7 B.
_COLUMNS = 0x0040_0040_0040_0040  # bytes of a row of four tiles, 64 each
_FIRST, _SECOND, _PANEL = 0x00_00_00_01_00_00_01_01, 0x00_00_01_00_01_01_00_00, 0x1010 << 48


@inlined
def configure(config, first, second):
    """Make tiles fit so many rows; config: CONFIG_BYTES to write to."""
    write_i64(config, 0, 1)
    write_i64(config, 1, 0)
    write_i64(config, 2, _COLUMNS)
    write_i64(config, 3, _COLUMNS)
    write_i64(config, 4, 0)
    write_i64(config, 5, 0)
    write_i64(config, 6, first * _FIRST + (second or first) * _SECOND + _PANEL)
    write_i64(config, 7, 0)
    amx.configure_from(config)


@inlined
def _one_by_one(a, stride, b, steps, c):
    amx.zero(0)
    for _ in range(steps):
        amx.load(4, a, stride)
        amx.load(6, b, 64)
        amx.dot_bf16(0, 4, 6)
        a += 64
        b += TILE_BYTES
    amx.store(0, c, 64)


@inlined
def _one_by_four(a, stride, b, panel_bytes, steps, c):
    amx.zero(0)
    amx.zero(1)
    amx.zero(2)
    amx.zero(3)
    for _ in range(steps):
        amx.load(4, a, stride)
        amx.load(6, b, 64)
        amx.dot_bf16(0, 4, 6)
        amx.load(7, b + panel_bytes, 64)
        amx.dot_bf16(1, 4, 7)
        amx.load(6, b + 2 * panel_bytes, 64)
        amx.dot_bf16(2, 4, 6)
        amx.load(7, b + 3 * panel_bytes, 64)
        amx.dot_bf16(3, 4, 7)
        a += 64
        b += TILE_BYTES
    amx.store(0, c, 256)
    amx.store(1, c + 64, 256)
    amx.store(2, c + 128, 256)
    amx.store(3, c + 192, 256)


@inlined
def _two_by_one(a, stride, rows, b, steps, c):
    amx.zero(0)
    amx.zero(2)
    other = a + rows * stride
    for _ in range(steps):
        amx.load(4, a, stride)
        amx.load(6, b, 64)
        amx.dot_bf16(0, 4, 6)
        amx.load(5, other, stride)
        amx.dot_bf16(2, 5, 6)
        a += 64
        other += 64
        b += TILE_BYTES
    amx.store(0, c, 64)
    amx.store(2, c + rows * 64, 64)


@inlined
def _two_by_two(a, b, c, ahead, lines):
    amx.zero(0)
    amx.zero(1)
    amx.zero(2)
    amx.zero(3)
    upper, stride, rows, _ = a
    panel, panel_bytes, steps = b
    lower = upper + rows * stride
    for _ in range(steps):
        amx.load(4, upper, stride)
        amx.load(6, panel, 64)
        amx.dot_bf16(0, 4, 6)
        amx.load(7, panel + panel_bytes, 64)
        amx.dot_bf16(1, 4, 7)
        amx.load(5, lower, stride)
        amx.dot_bf16(2, 5, 6)
        amx.dot_bf16(3, 5, 7)
        upper += 64
        lower += 64
        panel += TILE_BYTES
        for _ in range(lines):
            prefetch_far(ahead)
            ahead += 64
    amx.store(0, c, 128)
    amx.store(1, c + 64, 128)
    amx.store(2, c + rows * 128, 128)
    amx.store(3, c + rows * 128 + 64, 128)


@inlined
def pair_panel(a, b, c, width, ahead, lines):
    """C of some rows and `width` panels.

    a: (address, stride, first, second rows), for which the tiles are configured; b: (address, bytes
    of a panel, steps); c: [rows, width * 16] float32; width: 1, or 4 where there are no second
    rows, else 2; lines: cache lines from `ahead` on that two by two tiles fetch in every step.
    """
    rows, stride, first, second = a
    panel, panel_bytes, steps = b
    if second == 0:
        if width == 1:
            _one_by_one(rows, stride, panel, steps, c)
        else:
            _one_by_four(rows, stride, panel, panel_bytes, steps, c)
    elif width == 1:
        _two_by_one(rows, stride, first, panel, steps, c)
    else:
        _two_by_two(a, b, c, ahead, lines)


def _emit_finish(builder, operands, width):
    sums, bias, out, out_stride, num_rows = operands
    starts = [lanes.load_floats(builder, bias, I64(v * LANES)) for v in range(width)]
    with cgutils.for_range(builder, num_rows) as loop:
        row = builder.mul(loop.index, I64(width * LANES))
        place = builder.add(out, builder.mul(loop.index, out_stride))
        for v in range(0, width, 2):
            both = [
                builder.fadd(
                    lanes.load_floats(builder, sums, builder.add(row, I64(u * LANES))), starts[u]
                )
                for u in (v, v + 1)
            ]
            rounded = round_two(builder, *both)
            target = builder.add(place, I64(v * LANES * 2))
            builder.store(rounded, builder.inttoptr(target, rounded.type.as_pointer()), align=2)


@intrinsic
def finish_pairs(typing, sums, bias, out, out_stride, num_rows, width):
    """out[rows, 16 * width] bfloat16 = sums + bias, for two or four panels."""

    def generate(context, builder, signature, args):
        *operands, width = args
        for panels in (2, 4):
            with builder.if_then(builder.icmp_signed("==", width, I64(panels))):
                _emit_finish(builder, operands, panels)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 6), generate
