"""Attention of chunks of sixteen query rows over one packed tile, by pairs of 16-bit integers.

    scores [tokens, 16] = K x Q^T     online softmax     outputs [width, 16] += V^T x weights

Rows of K, V and queries are scaled to integers (integer_rows.py), weights to others
(integer_softmax.py); scores, sums and outputs are float32. Parts of 32 tokens of which no row of a
chunk sees any are left out, which would add exact zeros.
"""

from octavo.kernels.cpu.columns import add_columns, score_columns
from octavo.kernels.cpu.integer_softmax import weigh_integers
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import read_i32
from octavo.kernels.cpu.short_kind import INTEGERS
from octavo.kernels.cpu.sight import TILE, hide_scores, tokens_in_sight


@inlined
def attend_integers(packed, rows, lanes, tile, width, reach):
    """Fold one tile into the softmax of chunks that begin at rows first .. end - 1.

    lanes: (first, end, number of all rows); packed: (keys, values, scores [64, 16], scales of K
    and V [2, 64] with room for [2, 16] after them); rows: (queries, outputs, positions, highest,
    total, scales of scores) of row 0; tile: its first token.
    """
    keys, values, scores, key_scales = packed
    value_scales, factors = key_scales + 4 * TILE, key_scales + 8 * TILE
    for lane in range(lanes[0], lanes[1], LANES):
        queries, outputs = rows[0] + 2 * lane * width, rows[1] + 4 * lane * width
        positions, highest = rows[2] + 4 * lane, rows[3] + 4 * lane
        total, scales = rows[4] + 4 * lane, rows[5] + 4 * lane
        oldest, newest = read_i32(positions, 0), read_i32(positions, LANES - 1)
        low, end = tokens_in_sight(oldest, newest, tile, reach)
        if low < end:
            count, depth = end - low, width // 2
            source, own = keys + 2 * low * width, key_scales + 4 * low
            score_columns(INTEGERS, source, depth, count, queries, scores, depth, 1, own)
            hide_scores(scores, LANES, count, positions, (oldest, newest, tile + low, reach))
            state = (highest, total, factors)
            weigh_integers(scores, count, scales, value_scales + 4 * low, state)
            source = values + 2 * low * width
            add_columns(INTEGERS, source, width, width, scores, outputs, count // 2, 1, factors)
