"""Which tokens of a tile the rows of a chunk see, and the scores of those they do not.

A row at position p sees tokens p - reach < token <= p. Rows of a chunk are in order of position.
"""

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.softmax import MINUS_INFINITY
from octavo.kernels.cpu.vector import FLOAT, keep_in_sight, load, store

TILE = 64  # tokens
STEP = 32  # tokens that are left out together
EVERYTHING = 1 << 30  # reach of rows that see all before them


@inlined
def tokens_in_sight(oldest, newest, tile, reach):
    """Tokens of the tile that any row may see, in whole steps: (first, end).

    oldest, newest: positions of the first and the last row; tile: its first token.
    """
    low = max(0, oldest + 1 - reach - tile) // STEP * STEP
    end = min(TILE, (newest - tile) // STEP * STEP + STEP)
    return low, end


@inlined
def hide_scores(scores, row, count, positions, sight):
    """Minus infinity where a row does not see the token.

    scores: [count, row] float32; positions: [row] int32; sight: (oldest and newest position, token
    of the first score, reach).
    """
    oldest, newest, token, reach = sight
    _hide(scores, row, 0, min(count, newest + 1 - reach - token), positions, token, reach)
    _hide(scores, row, max(0, oldest + 1 - token), count, positions, token, reach)


@inlined
def _hide(scores, row, first, end, positions, token, reach):
    for t in range(first, end):
        for i in range(0, row, LANES):
            v = load(FLOAT, scores, t * row + i)
            v = keep_in_sight(v, positions, i, token + t, reach, MINUS_INFINITY)
            store(FLOAT, scores, t * row + i, v)
