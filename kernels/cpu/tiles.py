"""Products of attention over a tile of sixteen tokens, for one to three query heads at once.

    rows     [16] int64 addresses of the tokens' K or V rows, each [width] in the given format
    width    head_dim padded to a multiple of 16
    heads    how many query heads (1, 2 or 3) share each row that is loaded and widened

Queries and outputs are float32, each 16 elements in the order that rows are widened in (`arrange`,
`restore`). Sums, with what they are made of, fit the CPU's registers (registers.py).
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES
from octavo.kernels.cpu.registers import NUM_REGISTERS, SPLIT, WIDTH, ZERO, in_order
from octavo.kernels.cpu.vector import vector

i64 = types.int64
MAX_HEADS = 3


def _token_parts(count):
    """The rows of a register of scores in parts that are scored at once against `count` heads.

    A part's sums, its queries and a row with its halves fit the registers.
    """
    most = (NUM_REGISTERS - count - 4) // count
    num_parts = -(-WIDTH // most)
    return [range(WIDTH * i // num_parts, WIDTH * (i + 1) // num_parts) for i in range(num_parts)]


def _num_chains(count):
    """Sums of one head's columns, so that none waits long for its last addition."""
    return 4 if 4 * count * SPLIT + 4 <= NUM_REGISTERS else 2


def _for_each_count(builder, heads, emit):
    """Emit code for 1, 2 and 3 heads, and run the one that is asked for."""
    for count in range(1, MAX_HEADS + 1):
        with builder.if_then(builder.icmp_signed("==", heads, I64(count))):
            emit(count)


def _row_address(builder, rows, t):
    return builder.load(lanes.pointer(builder, rows, I64(t), 8, I64))


def _columns(builder, width):
    return cgutils.for_range(builder, builder.lshr(width, I64(4)))


@intrinsic
def arrange(typing, format, a):
    """Sixteen elements in the order that rows of this format are widened in."""
    order = registers.arrangement(format)

    def generate(context, builder, signature, args):
        return builder.shuffle_vector(args[1], args[1], ir.Constant(lanes.WORDS, order))

    return vector(format, vector), generate


@intrinsic
def restore(typing, format, a):
    """The opposite of `arrange`."""
    order = registers.arrangement(format)
    back = [order.index(i) for i in range(LANES)]

    def generate(context, builder, signature, args):
        return builder.shuffle_vector(args[1], args[1], ir.Constant(lanes.WORDS, back))

    return vector(format, vector), generate


def _dots(builder, format, args, count, tokens):
    """[head][token] products of `count` queries with rows, as sums that are still spread."""
    _, queries, rows, width, *_ = args
    sums = [
        [cgutils.alloca_once(builder, registers.REGISTER) for _ in tokens] for _ in range(count)
    ]
    for s in sum(sums, []):
        builder.store(ZERO, s)
    addresses = [_row_address(builder, rows, t) for t in tokens]
    with _columns(builder, width) as loop:
        column = builder.shl(loop.index, I64(4))
        places = [builder.add(builder.mul(width, I64(h)), column) for h in range(count)]
        for i, address in enumerate(addresses):
            for part, key in enumerate(registers.load_row(builder, format, address, column)):
                for h, place in enumerate(places):
                    place = builder.add(place, I64(part * WIDTH))
                    query = registers.load(builder, queries, place)
                    s = sums[h][i]
                    builder.store(registers.fma(builder, query, key, builder.load(s)), s)
    return [[builder.load(s) for s in head] for head in sums]


@intrinsic
def score_rows(typing, format, queries, rows, width, heads, scores, scores_stride):
    """scores[h][t] = queries[h] . rows[t]; queries: [heads, width]; scores_stride in bytes."""

    def generate(context, builder, signature, args):
        *_, heads, scores, scores_stride = args

        def emit(count):
            for first in range(0, LANES, WIDTH):
                sums: list[list[ir.Value]] = [[] for _ in range(count)]
                for part in _token_parts(count):
                    dots = _dots(builder, format, args, count, [first + t for t in part])
                    sums = [old + new for old, new in zip(sums, dots, strict=True)]
                for h in range(count):
                    target = builder.add(scores, builder.mul(scores_stride, I64(h)))
                    total = registers.add_neighbours(builder, sums[h])
                    registers.store(builder, target, I64(first), total)

        _for_each_count(builder, heads, emit)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def add_weighted_rows(
    typing, format, outputs, outputs_stride, rows, width, heads, weights, weights_stride
):
    """outputs[h] += sum over t of weights[h][t] * rows[t], [width]; strides in bytes."""

    def emit_column(builder, args, count, column):
        _, outputs, outputs_stride, rows, _, _, weights, weights_stride = args
        chains = _num_chains(count)
        heads = [builder.add(weights, builder.mul(weights_stride, I64(h))) for h in range(count)]
        sums = [[[ZERO] * SPLIT for _ in range(chains)] for _ in heads]
        for t in range(LANES):
            values = registers.load_row(builder, format, _row_address(builder, rows, t), column)
            for head, chain in zip(heads, sums, strict=True):
                weight = builder.load(lanes.pointer(builder, head, I64(t), 4, F32))
                factor = registers.splat(builder, weight)
                own = chain[t % chains]
                for part, value in enumerate(values):
                    own[part] = registers.fma(builder, factor, value, own[part])
            flat = iter(in_order(builder, [s for chain in sums for own in chain for s in own]))
            sums = [[[next(flat) for _ in own] for own in chain] for chain in sums]
        for h, chain in enumerate(sums):
            output = builder.add(outputs, builder.mul(outputs_stride, I64(h)))
            for part in range(SPLIT):
                index = builder.add(column, I64(part * WIDTH))
                total = registers.load(builder, output, index)
                for own in chain:
                    total = builder.fadd(total, own[part])
                registers.store(builder, output, index, total)

    def generate(context, builder, signature, args):
        def emit(count):
            with _columns(builder, args[4]) as loop:
                emit_column(builder, args, count, builder.shl(loop.index, I64(4)))

        _for_each_count(builder, args[5], emit)
        return context.get_dummy_value()

    return types.none(format, i64, i64, i64, i64, i64, i64, i64), generate
