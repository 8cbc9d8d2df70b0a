"""Online softmax of sixteen rows whose weights become 16-bit integers (columns.py).

    weights  w(t) = 2 ** (score - maximum)            in float32, of these the rows' sums are made
    shares   w(t) * scale of token t's V              what counts in the outputs
    integers round(share / gain)                      one gain for each row and tile

A row's gain is the least for which no integer is above 2^15 and their sum, at most 64 of them, not
above 2^17: with integers of V below 2^14 (integer_rows.py) no sum of products leaves 32 bits. So
flat weights keep 11 bits, and the greatest of steep ones 15. As shares hold the size of V, a first
token that draws most of the weight to a tiny V takes no precision from the others.
"""

import numpy as np

from octavo.kernels.cpu.column_softmax import highest_scores
from octavo.kernels.cpu.columns import pair_rounded
from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.integer_rows import ROUND
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import read_f32
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    div,
    exp2,
    exp2_half,
    fma,
    load,
    maximum,
    mul,
    splat,
    store,
    sub,
)

PER_GREATEST = np.float32(1 / 32766)
PER_SUM = np.float32(1 / (2**17 - 64))  # half a step for each of 64 roundings, and float32's own
SMALLEST = np.float32(1e-30)  # gain
ONE = np.float32(1.0)


@inlined
def _weigh(scores, num_tokens, scale, minus_top, value_scales):
    """Scores to shares, in place. Returns (sum of weights, sum of shares, greatest share)."""
    added = weighted = greatest = splat(ZERO)
    for t in range(0, num_tokens, 2):
        first = exp2_half(fma(load(FLOAT, scores, t * LANES), scale, minus_top))
        second = exp2_half(fma(load(FLOAT, scores, (t + 1) * LANES), scale, minus_top))
        added = add(added, add(first, second))
        first = mul(first, splat(read_f32(value_scales, t)))
        second = mul(second, splat(read_f32(value_scales, t + 1)))
        store(FLOAT, scores, t * LANES, first)
        store(FLOAT, scores, (t + 1) * LANES, second)
        weighted = add(weighted, add(first, second))
        greatest = maximum(maximum(first, second), greatest)
    return added, weighted, greatest


@inlined
def weigh_integers(scores, num_tokens, scales, value_scales, state):
    """scores [num_tokens, 16] float32 to weights [num_tokens / 2, 16] of pairs, in place.

    scales: [16], of scores; value_scales: [num_tokens]; num_tokens is even. state: (highest, total,
    factors), of which factors are [2, 16]: what outputs of before are to be multiplied by, and
    gains. NaN in a row, or in the V of a token, makes the row's sums NaN.
    """
    highest, total, factors = state
    scale, before = load(FLOAT, scales, 0), load(FLOAT, highest, 0)
    top = maximum(mul(highest_scores(scores, num_tokens, LANES), scale), before)
    minus_top = sub(splat(ZERO), top)
    added, weighted, greatest = _weigh(scores, num_tokens, scale, minus_top, value_scales)
    gain = maximum(mul(greatest, splat(PER_GREATEST)), mul(weighted, splat(PER_SUM)))
    gain = maximum(splat(SMALLEST), gain)
    steps, rounder = div(splat(ONE), gain), splat(ROUND)
    for t in range(0, num_tokens, 2):
        first = fma(load(FLOAT, scores, t * LANES), steps, rounder)
        second = fma(load(FLOAT, scores, (t + 1) * LANES), steps, rounder)
        store(FLOAT, scores, t // 2 * LANES, pair_rounded(first, second))
    factor = exp2(sub(before, top))
    store(FLOAT, highest, 0, top)
    store(FLOAT, total, 0, fma(load(FLOAT, total, 0), factor, added))
    store(FLOAT, factors, 0, factor)
    store(FLOAT, factors, LANES, gain)
