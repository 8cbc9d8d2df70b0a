"""Attention of chunks of 32 query rows over one packed tile of K and V, by matrix tiles.

    chunk:  next                  this                           the one before
            scores = K x Q^T      weights = 2 ** (scores - top)  outputs += V^T x weights
    then    maximum of `next`, and its outputs scaled when that grew

The three are done in parts, in turn: the matrix unit works at its parts while vectors compute the
weights. A row is a lane (columns.py): queries [width / 2, 32] and weights [tokens / 2, 32] are
pairs of bfloat16, scores [tokens, 32] and outputs [width, 32] float32; K is [tokens, width]
bfloat16, V transposed.

A row's result depends on neither the rest of its chunk nor how many tokens lie behind it: parts are
at fixed places of the tile, and what is out of sight adds exact zeros.
"""

import numpy as np

from octavo.kernels.cpu import amx
from octavo.kernels.cpu.column_softmax import highest_scores
from octavo.kernels.cpu.columns import pair, to_short
from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import read_i32
from octavo.kernels.cpu.sight import STEP, TILE, hide_scores, tokens_in_sight
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    are_equal,
    exp2,
    exp2_short,
    fma,
    load,
    mul,
    raised,
    splat,
    store,
    sub,
)

CHUNK = 32  # rows
PART = 16  # tokens of scores and weights
ROW = 128  # bytes of 32 lanes
SLACK = np.float32(8.0)  # how far a row's weights may exceed 1, as a power of two


@inlined
def _weigh(scores, weights, first, end, tops, scales, sums):
    """Weights of pairs of tokens first .. end - 1, and sums of a lane with them."""
    a, b = sums
    for p in range(first, end):
        row = scores + 2 * p * ROW
        pairs = weights + p * ROW
        even = exp2_short(fma(load(FLOAT, row, 0), scales, tops[0]))
        odd = exp2_short(fma(load(FLOAT, row, CHUNK), scales, tops[0]))
        store(FLOAT, pairs, 0, pair(to_short(even), to_short(odd)))
        a = add(a, add(even, odd))
        even = exp2_short(fma(load(FLOAT, row, LANES), scales, tops[1]))
        odd = exp2_short(fma(load(FLOAT, row, CHUNK + LANES), scales, tops[1]))
        store(FLOAT, pairs, LANES, pair(to_short(even), to_short(odd)))
        b = add(b, add(even, odd))
    return a, b


@inlined
def _work(keys, values, width, scored, weighed, added, scale):
    """Scores of one chunk, weights of another and outputs of a third, a few instructions of each
    in turn; a tile's sums are stored while the next ones are on their way.

    scored, weighed, added: (first token, end, ...) of each; see the code for the rest.
    """
    score_low, score_end, queries, new_scores = scored
    weigh_low, weigh_end, scores, new_weights, highest, total = weighed
    add_low, add_end, weights, outputs = added
    scales, zero = splat(scale), splat(ZERO)
    tops = sub(zero, load(FLOAT, highest, 0)), sub(zero, load(FLOAT, highest, LANES))
    sums = zero, zero
    p = weigh_low // 2  # the next pair of tokens to be weighed
    last = weigh_end // 2
    depth = width // 32  # steps of a sum of scores
    num_units = 2 * depth
    pace = ((4 << 16) + num_units - 1) // num_units  # pairs of tokens to be weighed for a step
    k, t = -1, 0
    for unit in range(num_units):
        for half in range(2):
            # A step of scores: 32 dimensions of 16 tokens.
            k += 1
            if k == depth:
                k, t = 0, t + PART
            has_scores = t >= score_low and t < score_end
            source = keys + 2 * (t * width + 32 * k)
            query = queries + k * 16 * ROW
            if has_scores:
                if k == 0:
                    amx.zero(0)
                    amx.zero(1)
                amx.load(4, source, 2 * width)
                amx.load(6, query, ROW)
                amx.dot_bf16(0, 4, 6)
                amx.load(7, query + 64, ROW)
            until = min(last, (8 * unit + 2 * half + 1) * pace >> 16)
            sums = _weigh(scores, new_weights, p, until, tops, scales, sums)
            p = max(p, until)
            if has_scores:
                amx.dot_bf16(1, 4, 7)
            if unit > 0 and add_low < add_end:
                place = outputs + 16 * (unit - 1) * ROW
                if half == 0:
                    amx.store(2, place, ROW)
                else:
                    amx.store(3, place + 64, ROW)
            until = min(last, (8 * unit + 2 * half + 2) * pace >> 16)
            ends_early = half == 0 and k == depth - 1 and depth % 2 == 1
            if ends_early:  # these scores' place must have been read
                until = max(until, min(last, (t + PART) // 2))
            sums = _weigh(scores, new_weights, p, until, tops, scales, sums)
            p = max(p, until)
            if ends_early and has_scores:
                amx.store(0, new_scores + t * ROW, ROW)
                amx.store(1, new_scores + t * ROW + 64, ROW)
        output = outputs + 16 * unit * ROW
        if add_low < add_end:
            amx.load(2, output, ROW)
            amx.load(3, output + 64, ROW)
        for half in range(2):
            # A step of outputs: 32 tokens of 16 dimensions.
            step = half * STEP
            has_values = step >= add_low and step < add_end
            if has_values:
                amx.load(5, values + 2 * (16 * unit * TILE + step), 2 * TILE)
                amx.load(6, weights + step // 2 * ROW, ROW)
                amx.dot_bf16(2, 5, 6)
                amx.load(7, weights + step // 2 * ROW + 64, ROW)
            until = min(last, (8 * unit + 2 * half + 5) * pace >> 16)
            sums = _weigh(scores, new_weights, p, until, tops, scales, sums)
            p = max(p, until)
            if has_values:
                amx.dot_bf16(3, 5, 7)
            until = min(last, (8 * unit + 2 * half + 6) * pace >> 16)
            sums = _weigh(scores, new_weights, p, until, tops, scales, sums)
            p = max(p, until)
        if has_scores and k == depth - 1:
            amx.store(0, new_scores + t * ROW, ROW)
            amx.store(1, new_scores + t * ROW + 64, ROW)
    sums = _weigh(scores, new_weights, p, last, tops, scales, sums)
    if add_low < add_end:
        amx.store(2, outputs + (width - 16) * ROW, ROW)
        amx.store(3, outputs + (width - 16) * ROW + 64, ROW)
    if weigh_low < weigh_end:
        store(FLOAT, total, 0, add(load(FLOAT, total, 0), sums[0]))
        store(FLOAT, total, LANES, add(load(FLOAT, total, LANES), sums[1]))


@inlined
def _raise_tops(scores, low, end, highest, total, outputs, width, scale):
    """The rows' references, where these tokens are far above: what came before is scaled down.

    A row's weights are relative to its reference, which need not be its maximum: float32 and
    bfloat16 are as exact SLACK powers of two above it.
    """
    for i in range(0, CHUNK, LANES):
        before = load(FLOAT, highest, i)
        peak = mul(highest_scores(scores + low * ROW + 4 * i, end - low, CHUNK), splat(scale))
        top = raised(before, peak, SLACK)
        if not are_equal(top, before):
            factor = exp2(sub(before, top))
            store(FLOAT, highest, i, top)
            store(FLOAT, total, i, mul(load(FLOAT, total, i), factor))
            for d in range(width):
                place = d * CHUNK + i
                store(FLOAT, outputs, place, mul(load(FLOAT, outputs, place), factor))


@inlined
def attend_tile(packed, rows, chunks, tile, width, scale, reach):
    """Fold one tile into the softmax of chunks first .. end - 1, each of which sees some of it.

    packed: (keys, values, scores [64, 32], weights of two chunks [2, 32, 32]); rows: (queries,
    outputs, positions, highest, total) of the first chunk; tile: its first token.
    """
    keys, values, scores, weights = packed
    all_queries, all_outputs, all_positions, all_highest, all_total = rows
    last_low, last_end = 0, 0  # of the chunk before
    low, end = 0, 0
    for c in range(chunks[0] - 1, chunks[1] + 1):
        next_low, next_end, oldest, newest = 0, 0, 0, 0
        positions = all_positions + (c + 1) * ROW
        if c + 1 < chunks[1]:
            oldest, newest = read_i32(positions, 0), read_i32(positions, CHUNK - 1)
            next_low, next_end = tokens_in_sight(oldest, newest, tile, reach)
        own = weights + (c & 1) * (TILE // 2 * ROW)
        other = weights + ((c + 1) & 1) * (TILE // 2 * ROW)
        highest, total = all_highest + c * ROW, all_total + c * ROW
        queries = all_queries + (c + 1) * (width // 2 * ROW)
        outputs = all_outputs + (c - 1) * (width * ROW)
        _work(
            keys,
            values,
            width,
            (next_low, next_end, queries, scores),
            (low, end, scores, own, highest, total),
            (last_low, last_end, other, outputs),
            scale,
        )
        if next_low < next_end:
            sight = (oldest, newest, tile + next_low, reach)
            count = next_end - next_low
            hide_scores(scores + next_low * ROW, CHUNK, count, positions, sight)
            _raise_tops(
                scores,
                next_low,
                next_end,
                all_highest + (c + 1) * ROW,
                all_total + (c + 1) * ROW,
                all_outputs + (c + 1) * (width * ROW),
                width,
                scale,
            )
        last_low, last_end = low, end
        low, end = next_low, next_end
