"""Products and softmax of attention with one query row in each lane, for a few vectors of rows.

    scores  [tokens, rows]  = K [tokens, width] x Q^T [width, rows]
    softmax of each column, in place; no lane ever looks at another    (column_softmax.py)
    outputs [width, rows]   = outputs * factors + V^T [width, tokens] x weights [tokens, rows]

K and V enter as single elements that are spread over the lanes. An element has four bytes: a
float32, or with *pairs* two neighbours in bfloat16 (of K and Q along width, of V and the weights
along tokens), which AVX512-BF16 multiplies and adds in one instruction. The kind of *integers* has
pairs of 16-bit integers, whose sums of 32 bits are scaled as they are stored (integer_rows.py).
"""

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes, registers
from octavo.kernels.cpu.integer_dot import dot_integers, pair_integers, to_float
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I64, LANES
from octavo.kernels.cpu.pair_dot import dot_pairs
from octavo.kernels.cpu.registers import NUM_REGISTERS, REGISTER, SPLIT, WIDTH, ZERO
from octavo.kernels.cpu.vector import vector

i64 = types.int64
MAX_VECTORS = 3 if NUM_REGISTERS // SPLIT >= 28 else 1  # of 16 rows


def _multiply_add(builder, kind, a, b, c):
    """a * b + c in every lane; for pairs both products are added."""
    if kind == types.float32:
        return registers.fma(builder, a, b, c)
    if kind == types.int32:
        return dot_integers(builder, a, b, c)
    return dot_pairs(builder, a, b, c)


def _row_parts(num_registers):
    """Sixteen rows of a product in parts whose sums, of so many registers a row, fit the CPU's."""
    most = (NUM_REGISTERS - 1 - num_registers) // num_registers
    num_parts = -(-LANES // most)
    return [range(LANES * i // num_parts, LANES * (i + 1) // num_parts) for i in range(num_parts)]


def _product(kind, is_transposed):
    """Code for c = a x b, or with is_transposed c = c * factors + a^T x b.

    a: [num_rows, depth] with `stride` elements from row to row, or [depth, num_rows]; num_rows is a
    multiple of 16; b: [depth, 16 * vectors]; c: [num_rows, 16 * vectors]; factors: [16 * vectors].
    Of integers, c = (a x b) * factors [num_rows], or c = c * factors + (a^T x b) * gains, which
    are [16 * vectors] and follow the factors.
    """
    are_integers = kind == types.int32

    def finish(builder, args, size, row, column, place, total):
        """What becomes of a register of sums of integers."""
        factors = args[8]
        total = to_float(builder, total)
        if not is_transposed:
            scale = builder.load(lanes.pointer(builder, factors, row, 4, F32))
            return builder.fmul(total, registers.splat(builder, scale))
        gain = registers.load(builder, factors, I64(size + column))
        before = registers.load(builder, args[5], place)
        before = builder.fmul(before, registers.load(builder, factors, I64(column)))
        return registers.fma(builder, total, gain, before)

    def emit_part(builder, args, size, rows):
        """Rows of c by number; size: floats of a row."""
        _, a, stride, _, b, c, depth, _, factors = args
        columns = range(0, size, WIDTH)
        places = [builder.add(builder.mul(row, I64(size)), I64(i)) for row in rows for i in columns]
        sums = [cgutils.alloca_once(builder, REGISTER) for _ in places]
        for i, (place, s) in enumerate(zip(places, sums, strict=True)):
            start = ZERO
            if is_transposed and not are_integers:
                scale = registers.load(builder, factors, I64(columns[i % len(columns)]))
                start = builder.fmul(registers.load(builder, c, place), scale)
            builder.store(start, s)
        with cgutils.for_range(builder, depth) as loop:
            base = builder.mul(loop.index, I64(size))
            others = [registers.load(builder, b, builder.add(base, I64(i))) for i in columns]
            for i, row in enumerate(rows):
                outer, inner = (loop.index, row) if is_transposed else (row, loop.index)
                index = builder.add(builder.mul(outer, stride), inner)
                element = builder.load(lanes.pointer(builder, a, index, 4, F32))
                spread = registers.splat(builder, element)
                for other, s in zip(others, sums[i * len(columns) :], strict=False):
                    total = _multiply_add(builder, kind, spread, other, builder.load(s))
                    builder.store(total, s)
        for i, (place, s) in enumerate(zip(places, sums, strict=True)):
            total = builder.load(s)
            if are_integers:
                row, column = divmod(i, len(columns))
                total = finish(builder, args, size, rows[row], columns[column], place, total)
            registers.store(builder, c, place, total)

    def emit(builder, args, count):
        with cgutils.for_range(builder, builder.udiv(args[3], I64(LANES))) as panel:
            first = builder.mul(panel.index, I64(LANES))
            for part in _row_parts(count * SPLIT):
                rows = [builder.add(first, I64(i)) for i in part]
                emit_part(builder, args, LANES * count, rows)

    def generate(context, builder, signature, args):
        vectors = args[7]
        for count in range(1, MAX_VECTORS + 1):
            with builder.if_then(builder.icmp_signed("==", vectors, I64(count))):
                emit(builder, args, count)
        return context.get_dummy_value()

    return types.none(kind, i64, i64, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def score_columns(typing, kind, keys, stride, num_tokens, queries, scores, depth, vectors, ones):
    """scores = keys x queries; see `_product`."""
    return _product(kind, is_transposed=False)


@intrinsic
def add_columns(typing, kind, values, stride, width, weights, outputs, depth, vectors, factors):
    """outputs = outputs * factors + values^T x weights; see `_product`."""
    return _product(kind, is_transposed=True)


@intrinsic
def are_pairs(typing, kind):
    """Whether elements are pairs of 16 bits: a constant that the compiler sees."""

    def generate(context, builder, signature, args):
        return ir.Constant(ir.IntType(1), int(kind != types.float32))

    return types.boolean(kind), generate


@intrinsic
def to_short(typing, a):
    """a rounded to bfloat16, still as float32; NaN stays NaN."""

    def generate(context, builder, signature, args):
        bits = builder.bitcast(args[0], lanes.WORDS)
        up = builder.add(bits, lanes.words(0x8000))
        return builder.bitcast(builder.and_(up, lanes.words(0xFFFF0000)), lanes.VECTOR)

    return vector(vector), generate


@intrinsic
def pair(typing, first, second):
    """Two vectors of bfloat16 values as one of pairs, the first in the lower halves."""

    def generate(context, builder, signature, args):
        low, high = (builder.bitcast(a, lanes.WORDS) for a in args)
        both = builder.or_(builder.lshr(low, lanes.words(16)), high)
        return builder.bitcast(both, lanes.VECTOR)

    return vector(vector, vector), generate


@intrinsic
def pair_rounded(typing, first, second):
    """Two vectors, ROUNDER added to each, as one of pairs of their nearest 16-bit integers."""
    return vector(vector, vector), lambda context, builder, _, args: pair_integers(builder, *args)
