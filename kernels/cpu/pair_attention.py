"""Attention of chunks of query rows over one packed tile of K and V, by pairs of bfloat16.

    scores [tokens, rows] = K x Q^T     online softmax     outputs [width, rows] += V^T x weights

A chunk has up to MAX_VECTORS vectors of rows, one a lane (columns.py). K is [64, width], V in pairs
of tokens, [32, width]; queries [width / 2, rows] are pairs. Parts of 32 tokens of which no row of a
chunk sees any are left out, which would add exact zeros.
"""

from octavo.kernels.cpu.column_softmax import softmax_columns
from octavo.kernels.cpu.columns import MAX_VECTORS, add_columns, pair, score_columns
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import read_i32
from octavo.kernels.cpu.short_kind import PAIRS, SHORT
from octavo.kernels.cpu.sight import hide_scores, tokens_in_sight
from octavo.kernels.cpu.vector import FLOAT, load, store


@inlined
def pair_tokens(rows, width, num_tokens, values):
    """values [num_tokens / 2, width] of pairs = rows [num_tokens, width]."""
    for t in range(0, num_tokens, 2):
        for i in range(0, width, LANES):
            first, second = load(SHORT, rows, t * width + i), load(SHORT, rows, (t + 1) * width + i)
            store(FLOAT, values, t // 2 * width + i, pair(first, second))


@inlined
def attend_pairs(packed, rows, lanes, tile, width, scale, reach):
    """Fold one tile into the softmax of chunks that begin at rows first .. end - 1.

    lanes: (first, end, number of all rows).

    packed: (keys, values, scores [64, 16 * MAX_VECTORS]); rows: (queries, outputs, positions,
    highest, total, factors) of row 0; tile: its first token.
    """
    keys, values, scores = packed
    lane = lanes[0]
    while lane < lanes[1]:
        vectors = min(MAX_VECTORS, (lanes[2] - lane + LANES - 1) // LANES)
        queries, outputs = rows[0] + 2 * lane * width, rows[1] + 4 * lane * width
        positions, highest = rows[2] + 4 * lane, rows[3] + 4 * lane
        total, factors = rows[4] + 4 * lane, rows[5] + 4 * lane
        oldest, newest = read_i32(positions, 0), read_i32(positions, vectors * LANES - 1)
        low, end = tokens_in_sight(oldest, newest, tile, reach)
        if low < end:
            count, depth = end - low, width // 2
            source = keys + 2 * low * width
            score_columns(PAIRS, source, depth, count, queries, scores, depth, vectors, factors)
            sight = (oldest, newest, tile + low, reach)
            hide_scores(scores, vectors * LANES, count, positions, sight)
            softmax_columns(PAIRS, scores, count, vectors, scale, highest, total, factors)
            source = values + 2 * low * width
            add_columns(PAIRS, source, width, width, scores, outputs, count // 2, vectors, factors)
        lane += vectors * LANES
