"""A register-blocked product of quantised rows: a few rows of activations and a strip of outputs.

    C[rows, STRIP] += sum over groups of level[row, group] * scale[group] * (A[rows, group] x B)
                                   (+ level * sum of A[row, group] * minimum[group], if half bytes)

Within a group of 32 products the sums are integers; C is float32. Sums and totals stay in
registers: three rows of 4 x 16 outputs with AVX-512, two rows of 4 x 8 with AVX2, of 2 x 8
elsewhere. A strip is one stream of blocks:

    bytes       [8 steps][STRIP][4], then STRIP scales in float16
    half bytes  [4][STRIP][4] (step i in the low, step i + 4 in the high half), scales, minima
"""

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import byte_assembly, lanes
from octavo.kernels.cpu.byte_dot import (
    BYTE_DOT,
    BYTES,
    FLOATS,
    GROUP,
    HAS_ASSEMBLY,
    HAS_HALVES,
    HAS_VNNI_512,
    NIBBLE_DOT,
    SHORTS,
    STEPS,
    WIDTH,
    WORDS,
    filled,
)
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import F32, I16, I32, I64, LINE

i64 = types.int64
ASSEMBLED = byte_assembly.ROWS, byte_assembly.VECTORS
PANEL_ROWS, VECTORS = (3, 4) if HAS_VNNI_512 else ASSEMBLED if HAS_ASSEMBLY else (2, 2)
STRIP = VECTORS * WIDTH  # outputs
FETCHED = byte_assembly.FETCHED * LINE
BYTE_BLOCK = GROUP * STRIP + 2 * STRIP
NIBBLE_BLOCK = GROUP // 2 * STRIP + 4 * STRIP


def _spread(builder, scalar, kind):
    """A scalar in all lanes of kind."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(WORDS, [0] * WIDTH))


def _load_all(builder, address, index, kind, vector):
    return _spread(builder, builder.load(lanes.pointer(builder, address, index, 4, kind)), vector)


def _load_bytes(builder, block, number):
    place = lanes.pointer(builder, block, I64(number), 4 * WIDTH, BYTES)
    return builder.load(place, align=2)


def _load_halves(builder, block, offset, v):
    """WIDTH float16 numbers, all finite, as float32."""
    address = builder.add(block, I64(offset + 2 * WIDTH * v))
    if HAS_HALVES:
        kind = ir.VectorType(ir.HalfType(), WIDTH)
        return builder.fpext(
            builder.load(lanes.pointer(builder, address, I64(0), 1, kind), align=2), FLOATS
        )
    kind = ir.VectorType(I16, WIDTH)
    raw = builder.load(lanes.pointer(builder, address, I64(0), 1, kind), align=2)
    moved = builder.shl(builder.sext(raw, WORDS), filled(WORDS, 13))
    bits = builder.and_(moved, filled(WORDS, 0x8FFFFFFF))
    return builder.fmul(builder.bitcast(bits, FLOATS), filled(FLOATS, 2.0**112))


def _fma(builder, a, b, c):
    return lanes.call(builder, f"llvm.fmuladd.v{WIDTH}f32", FLOATS, a, b, c)


class _ByteBlock:
    """One group of a strip, a byte a weight."""

    size, dot = BYTE_BLOCK, BYTE_DOT

    def steps(self, builder, block):
        """For each depth step, its number and the operands of its vectors."""
        for step in range(STEPS):
            raw = [_load_bytes(builder, block, step * VECTORS + v) for v in range(VECTORS)]
            yield step, [self.dot.operand(w, builder) for w in raw]

    def scales(self, builder, block, v):
        return _load_halves(builder, block, GROUP * STRIP, v)

    def minima(self, builder, block, v):
        return None


class _NibbleBlock:
    """One group of a strip, half a byte a weight, each 0 .. 15."""

    size, dot = NIBBLE_BLOCK, NIBBLE_DOT

    def steps(self, builder, block):
        low = filled(BYTES, 15)
        for i in range(STEPS // 2):
            raw = [_load_bytes(builder, block, i * VECTORS + v) for v in range(VECTORS)]
            yield i, [builder.and_(w, low) for w in raw]
            moved = [builder.lshr(builder.bitcast(w, SHORTS), filled(SHORTS, 4)) for w in raw]
            yield i + STEPS // 2, [builder.and_(builder.bitcast(w, BYTES), low) for w in moved]

    def scales(self, builder, block, v):
        return _load_halves(builder, block, GROUP // 2 * STRIP, v)

    def minima(self, builder, block, v):
        return _load_halves(builder, block, GROUP // 2 * STRIP + 2 * STRIP, v)


def _emit_group(builder, weights, block, rows, group, totals):
    """Add one group to totals; rows: addresses of (bytes, levels, starts, sums) of each."""
    dot, zero = weights.dot, filled(WORDS, 0)
    sums = []
    for _, _, starts, _ in rows:
        start = _load_all(builder, starts, group, I32, WORDS) if dot.is_offset else zero
        sums.append([dot.start(builder, start) for _ in range(VECTORS)])
    first = builder.mul(group, I64(STEPS))
    for step, operands in weights.steps(builder, block):
        for r, (a, *_) in enumerate(rows):
            quad = _load_all(builder, a, builder.add(first, I64(step)), I32, WORDS)
            quad = builder.bitcast(quad, BYTES)
            for v in range(VECTORS):
                sums[r][v] = dot.add(builder, sums[r][v], operands[v], quad)
        flat = dot.after_step(builder, [v for row in sums for v in row])
        sums = [flat[r * VECTORS : (r + 1) * VECTORS] for r in range(len(rows))]
    for v in range(VECTORS):
        scales = weights.scales(builder, block, v)
        minima = weights.minima(builder, block, v)
        for r, (_, levels, _, weighted) in enumerate(rows):
            place = totals[r * VECTORS + v]
            whole = builder.sitofp(dot.words(builder, sums[r][v]), FLOATS)
            level = _load_all(builder, levels, group, F32, FLOATS)
            factor = builder.fmul(level, scales)
            total = _fma(builder, whole, factor, builder.load(place))
            if minima is not None:
                sum_of_row = _load_all(builder, weighted, group, F32, FLOATS)
                total = _fma(builder, sum_of_row, minima, total)
            builder.store(total, place)


def _emit_panel(builder, weights, args, count):
    a, levels, spread, stride, b, groups, c, c_stride, ahead = args
    rows, places = [], []
    for r in range(count):
        step = builder.mul(stride, I64(r))
        own = builder.add(levels, step)
        starts = builder.add(own, spread)
        rows.append((builder.add(a, step), own, starts, builder.add(starts, spread)))
        target = builder.add(c, builder.mul(c_stride, I64(r)))
        places += [
            lanes.pointer(builder, target, I64(v), 4 * WIDTH, FLOATS) for v in range(VECTORS)
        ]
    totals = [cgutils.alloca_once(builder, FLOATS) for _ in places]
    for total, place in zip(totals, places, strict=True):
        builder.store(builder.load(place, align=4), total)
    with cgutils.for_range(builder, groups) as loop:
        block = builder.add(b, builder.mul(loop.index, I64(weights.size)))
        fetched = builder.add(ahead, builder.mul(loop.index, I64(FETCHED)))
        for line in range(0, FETCHED, LINE):
            lanes.fetch(builder, builder.add(fetched, I64(line)))
        _emit_group(builder, weights, block, rows, loop.index, totals)
    for total, place in zip(totals, places, strict=True):
        builder.store(builder.load(total), place, align=4)


# What a strip holds, named by the type of its kind.
BYTES_KIND, NIBBLES_KIND = np.int8(0), np.uint8(0)
_BLOCKS = {types.int8: _ByteBlock(), types.uint8: _NibbleBlock()}
PARTS = {"int8": byte_assembly.PARTS if HAS_ASSEMBLY else 1, "uint8": 1}  # of rows, see byte_rows


@intrinsic
def quantized_panel(typing, kind, a, levels, spread, stride, b, groups, c, c_stride, ahead, count):
    """Add to C of `count` (1 to PANEL_ROWS) rows what some groups of one strip make.

    a, levels: of the first group and row, as `byte_rows.quantize_row` leaves them, stride bytes
    from row to row; starts and sums are spread bytes after levels and after one another. b:
    [groups] blocks of this kind; c: [count, STRIP] float32, c_stride bytes from row to row. FETCHED
    bytes a group from ahead on are fetched.
    """
    weights = _BLOCKS[kind]

    def generate(context, builder, signature, args):
        _, *operands, count = args
        for rows in range(1, PANEL_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", count, I64(rows))):
                if kind == types.int8 and HAS_ASSEMBLY:
                    byte_assembly.emit_panel(builder, operands, rows)
                else:
                    _emit_panel(builder, weights, operands, rows)
        return context.get_dummy_value()

    return types.none(kind, *[i64] * 10), generate
