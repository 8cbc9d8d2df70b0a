"""Products of attention over a tile of sixteen tokens, for one to three query heads at once.

    rows     (address, [16] int64 offsets from it) of the tokens' K or V rows, each [width] in the
             given format
    ahead    rows that come next, fetched on the way, a few at a time: of a core's requests for
             memory, many at once wait
    width    head_dim padded to a multiple of 16
    heads    how many query heads (1, 2 or 3) share each row that is loaded and widened

Queries and outputs are float32, each 16 elements in the order that rows are widened in (`arrange`,
`restore`). Sums, with what they are made of, fit the CPU's registers (registers.py).
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes, registers, row_assembly
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES, LINE, MEMORY
from octavo.kernels.cpu.registers import NUM_REGISTERS, SPLIT, WIDTH, ZERO, in_order
from octavo.kernels.cpu.vector import vector

i64 = types.int64
MAX_HEADS = 3


def _tokens_at_once(count):
    """How many rows of a tile are scored at once against `count` heads.

    Their sums, a part of each query and a part of a row fit the registers.
    """
    most = min((NUM_REGISTERS - count - 1) // count, WIDTH)
    return 1 << (most.bit_length() - 1)


def _num_chains(count):
    """Sums of one head's columns, so that none waits long for its last addition."""
    return 4 if 4 * count * SPLIT + 4 <= NUM_REGISTERS else 2


def _for_each_count(builder, heads, emit):
    """Emit code for 1, 2 and 3 heads, and run the one that is asked for."""
    for count in range(1, MAX_HEADS + 1):
        with builder.if_then(builder.icmp_signed("==", heads, I64(count))):
            emit(count)


def _row_address(builder, rows, t):
    """Of row t, a number in LLVM code."""
    offsets = builder.extract_value(rows, 1)
    offset = builder.load(lanes.pointer(builder, offsets, t, 8, I64))
    return builder.add(builder.extract_value(rows, 0), offset)


def _fetch_row(builder, format, rows, t, width):
    """Ask for all of row t."""
    address = _row_address(builder, rows, t)
    row_bytes = builder.mul(width, I64(MEMORY[format][1]))
    with cgutils.for_range_slice(builder, I64(0), row_bytes, I64(LINE), inc=True) as (offset, _):
        lanes.fetch(builder, builder.add(address, offset))


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


def _dots(builder, format, addresses, queries, width):
    """Products of each query with each row, a query's after the other, as sums still spread."""
    sums = [cgutils.alloca_once(builder, registers.REGISTER) for _ in queries for _ in addresses]
    for s in sums:
        builder.store(ZERO, s)
    with _columns(builder, width) as loop:
        column = builder.shl(loop.index, I64(4))
        for i, address in enumerate(addresses):
            for part, key in enumerate(registers.load_row(builder, format, address, column)):
                index = builder.add(column, I64(part * WIDTH))
                for h, query in enumerate(queries):
                    s = sums[h * len(addresses) + i]
                    a = registers.load(builder, query, index)
                    builder.store(registers.fma(builder, a, key, builder.load(s)), s)
    return [builder.load(s) for s in sums]


@intrinsic
def score_rows(typing, format, queries, rows, ahead, width, heads, scores, scores_stride):
    """scores[h][t] = queries[h] . rows[t]; queries: [heads, width]; scores_stride in bytes."""
    dots = row_assembly.emit_dots if row_assembly.HAS_ASSEMBLY else _dots

    def generate(context, builder, signature, args):
        _, queries, rows, ahead, width, heads, scores, scores_stride = args

        def emit(count):
            num_tokens = _tokens_at_once(count)
            starts = [builder.add(queries, builder.mul(width, I64(4 * h))) for h in range(count)]
            for first in range(0, LANES, num_tokens):
                tokens = [I64(first + t) for t in range(num_tokens)]
                for t in tokens:
                    _fetch_row(builder, format, ahead, t, width)
                addresses = [_row_address(builder, rows, t) for t in tokens]
                sums = dots(builder, format, addresses, starts, width)
                for h in range(count):
                    target = builder.add(scores, builder.mul(scores_stride, I64(h)))
                    own = sums[h * num_tokens : (h + 1) * num_tokens]
                    total = registers.add_neighbours(builder, own)
                    registers.store(builder, target, I64(first), total)

        _for_each_count(builder, heads, emit)
        return context.get_dummy_value()

    return types.none(format, i64, rows, ahead, i64, i64, i64, i64), generate


@intrinsic
def add_weighted_rows(
    typing, format, outputs, outputs_stride, rows, ahead, width, heads, weights, weights_stride
):
    """outputs[h] += sum over t of weights[h][t] * rows[t], [width]; strides in bytes."""

    def emit_column(builder, args, count, column):
        _, outputs, outputs_stride, rows, _, _, _, weights, weights_stride = args
        chains = _num_chains(count)
        heads = [builder.add(weights, builder.mul(weights_stride, I64(h))) for h in range(count)]
        sums = [[[ZERO] * SPLIT for _ in range(chains)] for _ in heads]
        for t in range(LANES):
            address = _row_address(builder, rows, I64(t))
            values = registers.load_row(builder, format, address, column)
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
        ahead, width = args[4:6]
        num_columns = builder.lshr(width, I64(4))
        # Each column asks for its share of the rows.
        num_rows = builder.udiv(builder.add(num_columns, I64(LANES - 1)), num_columns)

        def emit(count):
            with _columns(builder, width) as loop:
                first = builder.mul(loop.index, num_rows)
                with cgutils.for_range(builder, num_rows) as row:
                    t = builder.and_(builder.add(first, row.index), I64(LANES - 1))
                    _fetch_row(builder, format, ahead, t, width)
                emit_column(builder, args, count, builder.shl(loop.index, I64(4)))

        _for_each_count(builder, args[6], emit)
        return context.get_dummy_value()

    return types.none(format, i64, i64, rows, ahead, i64, i64, i64, i64), generate
