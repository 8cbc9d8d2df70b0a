"""A tile of K and V as the products of one kind of short_kind.py want it, and its attention.

keys    [64, width], for integers scaled to them
values  [width, 64] for tiles; pairs of tokens, [32, width], for pairs and integers
scales  [2, 64] float32 of K and V, for integers
"""

from numba import typeof

from octavo.kernels.cpu.columns import MAX_VECTORS
from octavo.kernels.cpu.integer_attention import attend_integers
from octavo.kernels.cpu.integer_rows import shorten_keys, shorten_values
from octavo.kernels.cpu.jit import inlined, inlined_by_type
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.pair_attention import attend_pairs, pair_tokens
from octavo.kernels.cpu.short_kind import INTEGERS, PAIRS, TILES, are_integers, are_tiles
from octavo.kernels.cpu.sight import TILE
from octavo.kernels.cpu.tile_attention import CHUNK, attend_tile
from octavo.kernels.cpu.tile_rows import transpose_rows

MOST_LANES = LANES * max(CHUNK // LANES, MAX_VECTORS)  # of a chunk


@inlined
def tile_bytes(width):
    """Memory of `places`."""
    return TILE * (6 * width + 4 * MOST_LANES + 4 * CHUNK + 4 * 2) + 4 * 2 * LANES


@inlined
def places(start, width):
    """(keys, values, scores, weights of tiles' two chunks, scales, V before it is packed)"""
    keys = start  # [TILE, width]
    values = keys + 2 * TILE * width
    rows = values + 2 * TILE * width  # [TILE, width]
    scores = rows + 2 * TILE * width  # [TILE, MOST_LANES]
    weights = scores + 4 * TILE * MOST_LANES  # [2, TILE / 2, CHUNK] of pairs
    scales = weights + 4 * TILE * CHUNK  # [2, TILE], then [2, 16] factors and gains
    return keys, values, scores, weights, scales, rows


@inlined
def pack(kind, format, packed, width, num_tokens):
    """Pack num_tokens, a multiple of 32, of keys and rows as they were gathered."""
    keys, values, scores, _, scales, rows = packed
    if are_tiles(kind):
        transpose_rows(rows, width, num_tokens, values, 2 * TILE)
    elif are_integers(kind):
        shorten_keys(format, keys, width, num_tokens, scales, scores)
        shorten_values(format, rows, width, num_tokens, values, scales + 4 * TILE, scores)
    else:
        pair_tokens(rows, width, num_tokens, values)


def fold(kind, packed, state, lanes, tile, width, scale, reach):
    """Fold a packed tile into the softmax of rows first .. end - 1.

    lanes: (first, which begins a chunk, end, number of all rows); state: (queries, outputs,
    positions, highest, total, factors) of row 0, with integers' scales for factors.
    """
    raise NotImplementedError("for kernels only")


def _fold_tiles(kind, packed, state, lanes, tile, width, scale, reach):
    chunks = (lanes[0] // CHUNK, (lanes[1] + CHUNK - 1) // CHUNK)
    attend_tile(packed[:4], state[:5], chunks, tile, width, scale, reach)


def _fold_pairs(kind, packed, state, lanes, tile, width, scale, reach):
    attend_pairs(packed[:3], state, lanes, tile, width, scale, reach)


def _fold_integers(kind, packed, state, lanes, tile, width, scale, reach):
    keys, values, scores, _, scales, _ = packed
    attend_integers((keys, values, scores, scales), state, lanes, tile, width, reach)


@inlined_by_type(fold)
def _choose_fold(kind, packed, state, lanes, tile, width, scale, reach):
    folds = (TILES, _fold_tiles), (PAIRS, _fold_pairs), (INTEGERS, _fold_integers)
    return next(fold for own, fold in folds if typeof(own) == kind)
