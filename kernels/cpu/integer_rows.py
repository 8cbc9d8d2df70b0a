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
from octavo.kernels.cpu.memory import write_f32
from octavo.kernels.cpu.vector import FLOAT, fma, load, splat, store, sum_lanes

KEY_LENGTH = np.float32(32760)
VALUE_LENGTH = np.float32(16380)  # see integer_softmax.py
SHORTEST = np.float32(1e-30)  # square of a length; a row of zeros has a scale too
ROUND = np.float32(ROUNDER)


@inlined
def _length(format, row, width):
    """The row's Euclidean length, never 0; NaN if it has one."""
    squares = splat(ZERO)
    for i in range(0, width, LANES):
        v = load(format, row, i)
        squares = fma(v, v, squares)
    square = sum_lanes(squares)
    return np.sqrt(SHORTEST if square < SHORTEST else square)


@inlined
def shorten_row(format, row, width, target):
    """target [width / 2] of pairs = a row of queries or K, which may lie there. Returns its scale.

    Elements i and i + 16 of each 32 make a pair.
    """
    length = _length(format, row, width)
    factor, rounder = splat(KEY_LENGTH / length), splat(ROUND)
    for i in range(0, width, 2 * LANES):
        first = fma(load(format, row, i), factor, rounder)
        second = fma(load(format, row, i + LANES), factor, rounder)
        store(FLOAT, target, i // 2, pair_rounded(first, second))
    return length / KEY_LENGTH


@inlined
def shorten_keys(format, keys, width, num_tokens, scales):
    """keys [num_tokens, width] in place, and their scales [num_tokens]."""
    for t in range(num_tokens):
        row = keys + 2 * t * width
        write_f32(scales, t, shorten_row(format, row, width, row))


@inlined
def shorten_values(format, rows, width, num_tokens, values, scales):
    """values [num_tokens / 2, width] of pairs of tokens = rows [num_tokens, width]."""
    rounder = splat(ROUND)
    for t in range(0, num_tokens, 2):
        row, after = rows + 2 * t * width, rows + 2 * (t + 1) * width
        length, length_after = _length(format, row, width), _length(format, after, width)
        write_f32(scales, t, length / VALUE_LENGTH)
        write_f32(scales, t + 1, length_after / VALUE_LENGTH)
        factor, factor_after = splat(VALUE_LENGTH / length), splat(VALUE_LENGTH / length_after)
        for i in range(0, width, LANES):
            first = fma(load(format, row, i), factor, rounder)
            second = fma(load(format, after, i), factor_after, rounder)
            store(FLOAT, values, t // 2 * width + i, pair_rounded(first, second))
