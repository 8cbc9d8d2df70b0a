"""Products of attention over a tile of sixteen tokens, for one to three query heads at once.

    rows     [16] int64 addresses of the tokens' K or V rows, each [width] in the given format
    width    head_dim padded to a multiple of 16
    heads    how many query heads (1, 2 or 3) share each row that is loaded and widened

Three heads with eight tokens are 24 sums, which with their operands fill the 32 registers.
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES, MEMORY

i64 = types.int64
MAX_HEADS = 3


def _for_each_count(builder, heads, emit):
    """Emit code for 1, 2 and 3 heads, and run the one that is asked for."""
    for count in range(1, MAX_HEADS + 1):
        with builder.if_then(builder.icmp_signed("==", heads, I64(count))):
            emit(count)


def _load_row(builder, format, rows, t, column):
    """Sixteen elements of row t, widened."""
    kind, item_bytes = MEMORY[format]
    address = builder.load(lanes.pointer(builder, rows, I64(t), 8, I64))
    source = lanes.pointer(builder, address, column, item_bytes, kind)
    return lanes.widen(builder, kind, builder.load(source, align=item_bytes))


def _columns(builder, width):
    return cgutils.for_range(builder, builder.lshr(width, I64(4)))


@intrinsic
def score_rows(typing, format, queries, rows, width, heads, scores, scores_stride):
    """scores[h][t] = queries[h] . rows[t]; queries: [heads, width] float32; strides in bytes."""

    def dot(builder, args, count, tokens):
        _, queries, rows, width, *_ = args
        zero = ir.Constant(lanes.VECTOR, None)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in tokens] for _ in range(count)]
        for head in sums:
            for s in head:
                builder.store(zero, s)
        with _columns(builder, width) as loop:
            column = builder.shl(loop.index, I64(4))
            query = [
                lanes.load_floats(builder, queries, builder.add(builder.mul(width, I64(h)), column))
                for h in range(count)
            ]
            for i, t in enumerate(tokens):
                key = _load_row(builder, format, rows, t, column)
                for h in range(count):
                    s = sums[h][i]
                    builder.store(lanes.fma(builder, query[h], key, builder.load(s)), s)
        return [[builder.load(s) for s in head] for head in sums]

    def generate(context, builder, signature, args):
        *_, heads, scores, scores_stride = args

        def emit(count):
            halves = [
                dot(builder, args, count, range(0, 8)),
                dot(builder, args, count, range(8, 16)),
            ]
            for h in range(count):
                vectors, width = halves[0][h] + halves[1][h], LANES
                while width > 1:
                    vectors, width = lanes.add_neighbours(builder, vectors, width), width // 2
                target = builder.add(scores, builder.mul(scores_stride, I64(h)))
                lanes.store_floats(builder, target, I64(0), vectors[0])

        _for_each_count(builder, heads, emit)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def add_weighted_rows(typing, format, outputs, rows, width, heads, weights, weights_stride):
    """outputs[h] += sum over t of weights[h][t] * rows[t]; outputs: [heads, width] float32."""

    def generate(context, builder, signature, args):
        _, outputs, rows, width, heads, weights, weights_stride = args

        def emit(count):
            with _columns(builder, width) as loop:
                column = builder.shl(loop.index, I64(4))
                indices = [builder.add(builder.mul(width, I64(h)), column) for h in range(count)]
                # Two chains of eight additions a head, so that none waits long for another.
                sums = [
                    [lanes.load_floats(builder, outputs, i), ir.Constant(lanes.VECTOR, None)]
                    for i in indices
                ]
                for t in range(LANES):
                    value = _load_row(builder, format, rows, t, column)
                    for h in range(count):
                        head = builder.add(weights, builder.mul(weights_stride, I64(h)))
                        weight = builder.load(lanes.pointer(builder, head, I64(t), 4, F32))
                        factor = lanes.splat(builder, weight)
                        sums[h][t % 2] = lanes.fma(builder, factor, value, sums[h][t % 2])
                for index, pair in zip(indices, sums, strict=True):
                    lanes.store_floats(builder, outputs, index, builder.fadd(*pair))

        _for_each_count(builder, heads, emit)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64, i64, i64), generate
