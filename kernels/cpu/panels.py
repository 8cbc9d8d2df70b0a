"""Register-blocked float32 products for prefill attention.

panel      C[6, 64] += A[6, depth] x B[depth, 64]      24 sums in registers, A broadcast
transpose  16 rows of K, 16 columns of each, to 16 rows of K^T
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES, MEMORY

i64 = types.int64
PANEL_ROWS = 6
PANEL_VECTORS = 4


def _panel(num_vectors):
    """Code for C[6, 16 * num_vectors] += A x B; strides in floats."""

    def generate(context, builder, signature, args):
        a, a_stride, b, b_stride, c, c_stride, depth = args
        places = [
            (r, builder.add(builder.mul(c_stride, I64(r)), I64(v * LANES)))
            for r in range(PANEL_ROWS)
            for v in range(num_vectors)
        ]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes.VECTOR, None)) for _ in places]
        for s, (_, index) in zip(sums, places, strict=True):
            builder.store(lanes.load_floats(builder, c, index), s)
        with cgutils.for_range(builder, depth) as loop:
            row = builder.mul(b_stride, loop.index)
            columns = [
                lanes.load_floats(builder, b, builder.add(row, I64(v * LANES)))
                for v in range(num_vectors)
            ]
            for r in range(PANEL_ROWS):
                index = builder.add(builder.mul(a_stride, I64(r)), loop.index)
                factor = builder.load(lanes.pointer(builder, a, index, 4, F32))
                factor = lanes.splat(builder, factor)
                for v in range(num_vectors):
                    s = sums[r * num_vectors + v]
                    builder.store(lanes.fma(builder, factor, columns[v], builder.load(s)), s)
        for s, (_, index) in zip(sums, places, strict=True):
            lanes.store_floats(builder, c, index, builder.load(s))
        return context.get_dummy_value()

    return types.none(i64, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def wide_panel(typing, a, a_stride, b, b_stride, c, c_stride, depth):
    """C[6, 64] += A[6, depth] x B[depth, 64]."""
    return _panel(PANEL_VECTORS)


@intrinsic
def narrow_panel(typing, a, a_stride, b, b_stride, c, c_stride, depth):
    """C[6, 16] += A[6, depth] x B[depth, 16]."""
    return _panel(1)


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
            vectors.append(lanes.widen(builder, kind, raw))
        for j, v in enumerate(lanes.transposed(builder, vectors)):
            lanes.store_floats(builder, target, builder.mul(target_stride, I64(j)), v)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64), generate
