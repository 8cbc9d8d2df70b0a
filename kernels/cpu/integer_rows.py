"""Rows of queries, K and V as 16-bit integers, each with a float32 scale of its own.

    row = integers * scale      the integers' Euclidean length is about a limit

A product of two rows is at most that of their lengths, whatever head_dim is: with KEY_LENGTH below
2^15 no sum, of any part of it, leaves 32 bits. One large element takes no more from the others than
its share of the length: at head_dim 64 they keep 12 bits beside their sign, 10 beside an element
thirty times as large. A scale depends on its own row alone.
"""

import numpy as np

from octavo.kernels.cpu.columns import pair_rounded
from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, ROUNDER
from octavo.kernels.cpu.memory import read_f32
from octavo.kernels.cpu.vector import (
    FLOAT,
    div,
    fma,
    load,
    maximum,
    mul,
    splat,
    sqrt,
    store,
    sum_lanes,
    sum_rows,
)

KEY_LENGTH = np.float32(32760)
VALUE_LENGTH = np.float32(16380)  # see integer_softmax.py
SHORTEST = np.float32(1e-30)  # square of a length; a row of zeros has a scale too
ROUND = np.float32(ROUNDER)
ONE = np.float32(1.0)


@inlined
def _squares(format, row, width):
    """Sixteen sums of the row's squares."""
    squares = splat(ZERO)
    for i in range(0, width, LANES):
        v = load(format, row, i)
        squares = fma(v, v, squares)
    return squares


@inlined
def _measure(format, rows, width, limit, scales, room):
    """The scales of rows [16, width] for a length of limit. room: [16, 16] float32.

    What the rows are to be multiplied by is left in the first [16] of room.
    """
    for t in range(LANES):
        store(FLOAT, room, t * LANES, _squares(format, rows + 2 * t * width, width))
    lengths = sqrt(maximum(splat(SHORTEST), sum_rows(room)))
    store(FLOAT, scales, 0, mul(lengths, splat(ONE / limit)))
    store(FLOAT, room, 0, div(splat(limit), lengths))


@inlined
def _shorten(format, row, width, target, factor):
    factors, rounder = splat(factor), splat(ROUND)
    for i in range(0, width, 2 * LANES):
        first = fma(load(format, row, i), factors, rounder)
        second = fma(load(format, row, i + LANES), factors, rounder)
        store(FLOAT, target, i // 2, pair_rounded(first, second))


@inlined
def shorten_query(format, row, width):
    """A row [width] in place, as pairs of elements i and i + 16 of each 32. Returns its scale."""
    square = sum_lanes(_squares(format, row, width))
    length = np.sqrt(SHORTEST if square < SHORTEST else square)
    _shorten(format, row, width, row, KEY_LENGTH / length)
    return length / KEY_LENGTH


@inlined
def shorten_keys(format, keys, width, num_tokens, scales, room):
    """keys [num_tokens, width] in place, paired as queries are, and their scales [num_tokens].

    num_tokens is a multiple of 16; room: [16, 16] float32.
    """
    for first in range(0, num_tokens, LANES):
        rows = keys + 2 * first * width
        _measure(format, rows, width, KEY_LENGTH, scales + 4 * first, room)
        for t in range(LANES):
            row = rows + 2 * t * width
            _shorten(format, row, width, row, read_f32(room, t))


@inlined
def shorten_values(format, rows, width, num_tokens, values, scales, room):
    """values [num_tokens / 2, width] of pairs of tokens = rows [num_tokens, width]; as above."""
    rounder = splat(ROUND)
    for start in range(0, num_tokens, LANES):
        of_sixteen = rows + 2 * start * width
        _measure(format, of_sixteen, width, VALUE_LENGTH, scales + 4 * start, room)
        for t in range(0, LANES, 2):
            row, after = of_sixteen + 2 * t * width, of_sixteen + 2 * (t + 1) * width
            factor, factor_after = splat(read_f32(room, t)), splat(read_f32(room, t + 1))
            for i in range(0, width, LANES):
                first = fma(load(format, row, i), factor, rounder)
                second = fma(load(format, after, i), factor_after, rounder)
                place = (start + t) // 2 * width + i
                store(FLOAT, values, place, pair_rounded(first, second))
