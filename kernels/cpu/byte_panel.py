"""A register-blocked product of bytes: up to three rows of activations and 64 outputs at once.

    C[rows, 64] = sum over groups of level[row, group] * (A[rows, group] x B[group, 64])

Within a group of some 64 products the sums are integers; C is float32. Both stay in registers, 12
of each. (Six rows with C in memory were 15 % slower.) B is packed so that four bytes of 64 outputs
are 256 bytes in a row: the whole matrix is one stream, which the CPU fetches ahead by itself.
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.byte_lanes import add_dot
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I32, I64, LANES

i64 = types.int64
PANEL_ROWS = 3
PANEL_VECTORS = 4
PANEL = PANEL_VECTORS * LANES  # outputs
QUAD = 4  # bytes of one depth step


def _load_words(builder, address, index):
    return builder.load(lanes.pointer(builder, address, index, 4, lanes.WORDS), align=4)


def _splat_word(builder, address, index):
    """Four bytes in all lanes."""
    word = builder.load(lanes.pointer(builder, address, index, 4, I32), align=4)
    first = builder.insert_element(ir.Constant(lanes.WORDS, ir.Undefined), word, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(lanes.WORDS, [0] * LANES))


def _rows_of(builder, address, stride, count):
    return [builder.add(address, builder.mul(stride, I64(r))) for r in range(count)]


def _emit_panel(context, builder, args, count):
    a, a_stride, levels, starts, levels_stride, b, groups, steps, c = args
    rows = _rows_of(builder, a, a_stride, count)
    level_rows = _rows_of(builder, levels, levels_stride, count)
    start_rows = _rows_of(builder, starts, levels_stride, count)
    sums = [
        [cgutils.alloca_once(builder, lanes.WORDS) for _ in range(PANEL_VECTORS)]
        for _ in range(count)
    ]
    totals = [cgutils.alloca_once(builder, lanes.VECTOR) for _ in range(count * PANEL_VECTORS)]
    for total in totals:
        builder.store(ir.Constant(lanes.VECTOR, None), total)
    with cgutils.for_range(builder, groups) as group:
        for r in range(count):
            start = _splat_word(builder, start_rows[r], group.index)
            for v in range(PANEL_VECTORS):
                builder.store(start, sums[r][v])
        first = builder.mul(group.index, steps)
        with cgutils.for_range(builder, steps) as loop:
            step = builder.add(first, loop.index)
            place = builder.mul(step, I64(PANEL))
            columns = [
                _load_words(builder, b, builder.add(place, I64(v * LANES)))
                for v in range(PANEL_VECTORS)
            ]
            for r in range(count):
                quad = _splat_word(builder, rows[r], step)
                for v in range(PANEL_VECTORS):
                    total = builder.load(sums[r][v])
                    builder.store(add_dot(context, builder, total, columns[v], quad), sums[r][v])
        for r in range(count):
            level = builder.load(lanes.pointer(builder, level_rows[r], group.index, 4, F32))
            level = lanes.splat(builder, level)
            for v in range(PANEL_VECTORS):
                place = totals[r * PANEL_VECTORS + v]
                whole = builder.sitofp(builder.load(sums[r][v]), lanes.VECTOR)
                builder.store(lanes.fma(builder, whole, level, builder.load(place)), place)
    for i, total in enumerate(totals):
        lanes.store_floats(builder, c, I64(i * LANES), builder.load(total))


@intrinsic
def byte_panel(typing, a, a_stride, levels, starts, levels_stride, b, groups, steps, c, count):
    """C of `count` (1 to 3) rows.

    a: rows of signed bytes; levels, starts: [groups] float32 and int32 of each row; strides in
    bytes; b: [groups * steps, 64, 4] unsigned bytes; c: [count, 64] float32. starts[g] takes back
    what the offset of b adds: -128 times the sum of the group's bytes.
    """

    def generate(context, builder, signature, args):
        *operands, count = args
        for rows in range(1, PANEL_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", count, I64(rows))):
                _emit_panel(context, builder, operands, rows)
        return context.get_dummy_value()

    return types.none(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64), generate
