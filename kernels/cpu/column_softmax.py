"""Online softmax of scores whose lanes are rows (columns.py): no lane ever looks at another.

    scores [tokens, 16 * vectors]  -->  weights 2 ** (score * scale - maximum), in place

Of each row are kept: its maximum (`highest`), its sum of weights (`total`), and what outputs and
sums of before are to be multiplied by (`factors`), [16 * vectors] each.
"""

import numpy as np

from octavo.kernels.cpu.columns import are_pairs, pair, to_short
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    are_equal,
    exp2,
    exp2_short,
    fma,
    load,
    maximum,
    mul,
    splat,
    store,
    sub,
)

NOTHING = np.float32(-3e38)  # the maximum of a row that may see no token at all


@inlined
def highest_scores(scores, num_tokens, row):
    """Of the lanes at `scores`; four at a time, as one waits for the one before."""
    a = load(FLOAT, scores, 0)
    b = load(FLOAT, scores, row)
    c, d = a, b
    whole = num_tokens // 4 * 4
    for t in range(0, whole, 4):
        a = maximum(load(FLOAT, scores, t * row), a)
        b = maximum(load(FLOAT, scores, (t + 1) * row), b)
        c = maximum(load(FLOAT, scores, (t + 2) * row), c)
        d = maximum(load(FLOAT, scores, (t + 3) * row), d)
    if whole < num_tokens:
        a = maximum(load(FLOAT, scores, whole * row), a)
        b = maximum(load(FLOAT, scores, (whole + 1) * row), b)
    return maximum(maximum(a, b), maximum(c, d))


@inlined
def softmax_columns(kind, scores, num_tokens, vectors, scale, highest, total, factors):
    """Scores to weights, pairs of tokens packed together where the kind is pairs.

    num_tokens is even. Returns whether any factor is not one.
    """
    row = vectors * LANES
    scales = splat(scale)
    is_changed = False
    for i in range(0, row, LANES):
        before = load(FLOAT, highest, i)
        top = maximum(mul(highest_scores(scores + 4 * i, num_tokens, row), scales), before)
        minus_top = sub(splat(np.float32(0.0)), top)
        added = splat(np.float32(0.0))
        for t in range(0, num_tokens, 2):
            first = fma(load(FLOAT, scores, t * row + i), scales, minus_top)
            second = fma(load(FLOAT, scores, (t + 1) * row + i), scales, minus_top)
            if are_pairs(kind):
                first, second = exp2_short(first), exp2_short(second)
                store(FLOAT, scores, t // 2 * row + i, pair(to_short(first), to_short(second)))
            else:
                first, second = exp2(first), exp2(second)
                store(FLOAT, scores, t * row + i, first)
                store(FLOAT, scores, (t + 1) * row + i, second)
            added = add(added, add(first, second))
        if not are_equal(top, before):
            is_changed = True
        factor = exp2(sub(before, top))
        store(FLOAT, highest, i, top)
        store(FLOAT, factors, i, factor)
        store(FLOAT, total, i, add(mul(load(FLOAT, total, i), factor), added))
    return is_changed
