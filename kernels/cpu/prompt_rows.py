"""Query rows of a span of prompt as lanes in 16 bits: transposed in, and back out.

queries  [chunk][pair of dimensions][row]     a chunk has up to a few vectors of 16 rows
outputs  [chunk][dimension][row]  -->  [token][head][dimension]

Row r of a span that begins with row `first` is head (first + r) % group of token
(first + r) // group.
"""

import numpy as np

from octavo.kernels.cpu.columns import MAX_VECTORS
from octavo.kernels.cpu.integer_rows import shorten_query
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import write_f32, write_i64
from octavo.kernels.cpu.panels import transpose
from octavo.kernels.cpu.short_kind import are_integers, are_tiles
from octavo.kernels.cpu.tile_attention import CHUNK
from octavo.kernels.cpu.tile_rows import clear_row, copy_row
from octavo.kernels.cpu.vector import FLOAT, first_lane, load, mul, splat, store, store_some

SPAN_UNIT = 96  # spans are multiples of it: whole chunks, of two vectors or of three


@inlined
def chunk_vectors(kind, lane, count):
    """Vectors of rows of the chunk that begins at a lane."""
    if are_tiles(kind):
        return CHUNK // LANES
    return min(MAX_VECTORS, (count - lane + LANES - 1) // LANES)


@inlined
def load_queries(kinds, source, strides, owned, addresses, scratch, target, scale):
    """queries[chunk][pair of dimensions][row]; rows past the last are zeros.

    kinds: (kind, format); source: the span's KV head and token 0; owned: (first row, rows, heads,
    head_dim, width); target: (queries, for integers the scales of rows' scores).
    """
    kind, format = kinds
    queries, scales = target
    first, count, group, size, width = owned
    depth = width // 2
    lane = 0
    while lane < count:
        vectors = chunk_vectors(kind, lane, count)
        for vec in range(vectors):
            for j in range(LANES):
                row = scratch + 4 * j * depth
                write_i64(addresses, j, row)
                r = lane + vec * LANES + j
                if r < count:
                    token, h = divmod(first + r, group)
                    copy_row(source + token * strides[0] + h * strides[1], row, size, width)
                else:
                    clear_row(row, width)
                if are_integers(kind):
                    write_f32(scales, r, scale * shorten_query(format, row, width))
            place = queries + 4 * (lane * depth + vec * LANES)
            for i in range(0, depth, LANES):
                transpose(FLOAT, addresses, i, place + 4 * i * vectors * LANES, vectors * LANES)
        lane += vectors * LANES


@inlined
def save_outputs(kinds, outputs, total, owned, addresses, scratch, out, strides):
    """The rows' weighted means to out, of the span's KV head and token 0."""
    kind, format = kinds
    first, count, group, size, width = owned
    whole = size // LANES * LANES
    lane = 0
    while lane < count:
        vectors = chunk_vectors(kind, lane, count)
        for vec in range(vectors):
            for i in range(0, size, LANES):
                for j in range(LANES):
                    place = lane * width + (i + j) * vectors * LANES + vec * LANES
                    write_i64(addresses, j, outputs + 4 * place)
                transpose(FLOAT, addresses, 0, scratch + 4 * i, width)
            for j in range(min(LANES, count - lane - vec * LANES)):
                r = lane + vec * LANES + j
                inverse = splat(np.float32(1.0) / first_lane(load(FLOAT, total, r)))
                token, h = divmod(first + r, group)
                target = out + token * strides[0] + h * strides[1]
                row = scratch + 4 * j * width
                for i in range(0, whole, LANES):
                    store(format, target, i, mul(load(FLOAT, row, i), inverse))
                if whole < size:
                    rest = mul(load(FLOAT, row, whole), inverse)
                    store_some(format, target, whole, size - whole, rest)
        lane += vectors * LANES
