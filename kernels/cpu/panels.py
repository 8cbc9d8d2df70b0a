"""Register-blocked float32 products for prefill attention.

panel      C[6, n] += A[6, depth] x B[depth, n]    sums in registers, A broadcast; n is 64 where
           there are 32 registers of 16 lanes, else 16
transpose  16 rows of K, 16 columns of each, to 16 rows of K^T
transpose_short   32 rows of V, 32 columns of each, to 32 rows of V^T, of 16 bits
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I32, I64, LANES, MEMORY
from octavo.kernels.cpu.registers import NUM_REGISTERS, SPLIT, WIDTH

i64 = types.int64
PANEL_ROWS = 6
PANEL_COLUMNS = 4 * LANES if NUM_REGISTERS // SPLIT >= 4 * PANEL_ROWS + 5 else LANES


def _panel(num_columns):
    """Code for C[6, num_columns] += A x B; strides in floats."""

    def generate(context, builder, signature, args):
        a, a_stride, b, b_stride, c, c_stride, depth = args
        columns = range(0, num_columns, WIDTH)
        places = [
            [builder.add(builder.mul(c_stride, I64(r)), I64(i)) for i in columns]
            for r in range(PANEL_ROWS)
        ]
        sums = [[cgutils.alloca_once(builder, registers.REGISTER) for _ in columns] for _ in places]
        for row, own in zip(places, sums, strict=True):
            for index, s in zip(row, own, strict=True):
                builder.store(registers.load(builder, c, index), s)
        with cgutils.for_range(builder, depth) as loop:
            base = builder.mul(b_stride, loop.index)
            factors = [registers.load(builder, b, builder.add(base, I64(i))) for i in columns]
            for r, own in enumerate(sums):
                index = builder.add(builder.mul(a_stride, I64(r)), loop.index)
                element = builder.load(lanes.pointer(builder, a, index, 4, F32))
                spread = registers.splat(builder, element)
                for factor, s in zip(factors, own, strict=True):
                    builder.store(registers.fma(builder, spread, factor, builder.load(s)), s)
        for row, own in zip(places, sums, strict=True):
            for index, s in zip(row, own, strict=True):
                registers.store(builder, c, index, builder.load(s))
        return context.get_dummy_value()

    return types.none(i64, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def wide_panel(typing, a, a_stride, b, b_stride, c, c_stride, depth):
    """C[6, PANEL_COLUMNS] += A[6, depth] x B[depth, PANEL_COLUMNS]."""
    return _panel(PANEL_COLUMNS)


@intrinsic
def narrow_panel(typing, a, a_stride, b, b_stride, c, c_stride, depth):
    """C[6, 16] += A[6, depth] x B[depth, 16]."""
    return _panel(LANES)


@intrinsic
def transpose(typing, format, rows, column, target, target_stride):
    """target[j][t] = rows[t][column + j] for 16 x 16; target_stride in floats."""
    kind, item_bytes = MEMORY[format]

    def generate(context, builder, signature, args):
        _, rows, column, target, target_stride = args
        vectors = []
        for t in range(LANES):
            address = builder.load(lanes.pointer(builder, rows, I64(t), 8, I64))
            source = lanes.pointer(builder, address, column, item_bytes, kind)
            raw = builder.load(source, align=item_bytes)
            vectors.append(lanes.widen(builder, raw))
        for j, v in enumerate(lanes.transposed(builder, vectors)):
            lanes.store_floats(builder, target, builder.mul(target_stride, I64(j)), v)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64), generate


@intrinsic
def transpose_short(typing, source, source_stride, target, target_stride):
    """target[j][t] = source[t][j] for 32 x 32 numbers of 16 bits; strides in bytes."""
    kind = ir.VectorType(lanes.I16, 2 * LANES)

    def generate(context, builder, signature, args):
        source, source_stride, target, target_stride = args
        for half in (0, 4):  # of each eight columns
            columns = [8 * part + half + i for part in range(4) for i in range(4)]
            order = [j + row for j in columns for row in (0, 2 * LANES)]
            order = ir.Constant(ir.VectorType(I32, 2 * LANES), order)
            pairs = []
            for t in range(0, 2 * LANES, 2):
                places = [builder.mul(source_stride, I64(t + i)) for i in range(2)]
                both = [
                    builder.load(
                        lanes.pointer(builder, builder.add(source, p), I64(0), 2, kind), align=2
                    )
                    for p in places
                ]
                pair = builder.shuffle_vector(*both, order)
                pairs.append(builder.bitcast(pair, lanes.VECTOR))
            for j, v in zip(columns, lanes.transposed(builder, pairs), strict=True):
                row = builder.add(target, builder.mul(target_stride, I64(j)))
                lanes.store_floats(builder, row, I64(0), v)
        return context.get_dummy_value()

    return types.none(i64, i64, i64, i64), generate
