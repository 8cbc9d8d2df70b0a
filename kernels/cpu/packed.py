"""Tiles of sixty-four tokens of K and V, packed for dense products with a block of query rows.

    rows of paged K, V (any format)  --widen-->  K^T [width, 64] and V [64, width], float32
    scores [count, 64] = queries x K^T          outputs [count, width] += weights x V

    for columns.py, in pairs of bfloat16:  K [64, width / 2] and V [32, width]

Each row of a product depends on nothing but that row. Tokens out of sight are packed as zeros.
"""

from octavo.kernels.cpu.columns import pair
from octavo.kernels.cpu.heads import ZERO, head_width
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import copy_bytes, prefetch, read_i64, write_i64
from octavo.kernels.cpu.panels import (
    PANEL_COLUMNS,
    PANEL_ROWS,
    narrow_panel,
    transpose,
    wide_panel,
)
from octavo.kernels.cpu.vector import FLOAT, load, splat, store

TILE = 64  # tokens
ROWS = 4 * PANEL_ROWS  # query rows of a block


@inlined
def _take_rows(rows, base, offsets, sight, tile, padded, row_bytes, padded_bytes):
    """rows[t] = address of token tile + t, counted from the first tile; zeros out of sight.

    padded: sixteen rows padded to whole vectors, and a row of zeros.
    """
    for t in range(LANES):
        position = tile + t
        row = padded + LANES * padded_bytes
        if position >= sight[0] and position < sight[1]:
            row = base + read_i64(offsets, position - sight[0])
            if row_bytes < padded_bytes:
                room = padded + t * padded_bytes
                copy_bytes(room, row, row_bytes)
                row = room
        write_i64(rows, t, row)


@inlined
def pack_keys(format, rows, base, offsets, sight, padded, keys, size, width, item_bytes):
    """keys[tile][dimension][token of 64] = K."""
    for tile in range(0, (sight[1] + TILE - 1) // TILE * TILE, LANES):
        _take_rows(rows, base, offsets, sight, tile, padded, size * item_bytes, width * item_bytes)
        target = keys + 4 * (tile // TILE * TILE * width + tile % TILE)
        for i in range(0, width, LANES):
            transpose(format, rows, i, target + 4 * i * TILE, TILE)


@inlined
def pack_values(format, rows, base, offsets, sight, padded, values, size, width, item_bytes):
    """values[token][dimension] = V."""
    for tile in range(0, (sight[1] + TILE - 1) // TILE * TILE, LANES):
        _take_rows(rows, base, offsets, sight, tile, padded, size * item_bytes, width * item_bytes)
        for t in range(LANES):
            for i in range(0, width, LANES):
                store(FLOAT, values, (tile + t) * width + i, load(format, read_i64(rows, t), i))


@inlined
def _take_tile_rows(rows, base, offsets, padded, place, first):
    """As `_take_rows` for rows from `first` of the tile; those of the next tile are fetched."""
    num_tokens, tile, size, width, item_bytes = place
    first += tile
    row_bytes, padded_bytes = size * item_bytes, width * item_bytes
    _take_rows(rows, base, offsets, (0, num_tokens), first, padded, row_bytes, padded_bytes)
    for t in range(first + TILE, min(first + TILE + LANES, num_tokens)):
        for i in range(0, row_bytes, LINE):
            prefetch(base + read_i64(offsets, t) + i)


@inlined
def copy_rows(format, rows, base, offsets, padded, target, place):
    """target[token][dimension] = one tile of K or V, widened; zeros from num_tokens on."""
    width = place[3]
    for first in range(0, TILE, LANES):
        _take_tile_rows(rows, base, offsets, padded, place, first)
        for t in range(LANES):
            for i in range(0, width, LANES):
                store(FLOAT, target, (first + t) * width + i, load(format, read_i64(rows, t), i))


@inlined
def copy_pairs(rows, base, offsets, padded, keys, place):
    """keys[token][dimension / 2] = one tile of K, in bfloat16 as it is."""
    width = place[3]
    for first in range(0, TILE, LANES):
        _take_tile_rows(rows, base, offsets, padded, place, first)
        for t in range(LANES):
            for i in range(0, width // 2, LANES):
                store(
                    FLOAT, keys, (first + t) * (width // 2) + i, load(FLOAT, read_i64(rows, t), i)
                )


@inlined
def pair_rows(format, rows, base, offsets, padded, values, place):
    """values[token / 2][dimension] = one tile of V, in bfloat16, two tokens to an element."""
    width = place[3]
    for first in range(0, TILE, LANES):
        _take_tile_rows(rows, base, offsets, padded, place, first)
        for t in range(0, LANES, 2):
            for i in range(0, width, LANES):
                both = pair(
                    load(format, read_i64(rows, t), i), load(format, read_i64(rows, t + 1), i)
                )
                store(FLOAT, values, (first + t) // 2 * width + i, both)


@inlined
def score(queries, keys, scores, count, width):
    """scores [count, 64] = queries [count, width] x keys [width, 64]."""
    for i in range(0, ROWS * TILE, LANES):
        store(FLOAT, scores, i, splat(ZERO))
    for r in range(0, count, PANEL_ROWS):
        query, row = queries + 4 * r * width, scores + 4 * r * TILE
        for i in range(0, TILE, PANEL_COLUMNS):
            wide_panel(query, width, keys + 4 * i, TILE, row + 4 * i, TILE, width)


@inlined
def add_values(scores, values, outputs, count, width):
    """outputs [count, head_width] += scores [count, 64] x values [64, width]."""
    stride = head_width(width)
    wide = width // PANEL_COLUMNS * PANEL_COLUMNS
    for r in range(0, count, PANEL_ROWS):
        weights, output = scores + 4 * r * TILE, outputs + 4 * r * stride
        for i in range(0, wide, PANEL_COLUMNS):
            wide_panel(weights, TILE, values + 4 * i, width, output + 4 * i, stride, TILE)
        for i in range(wide, width, LANES):
            narrow_panel(weights, TILE, values + 4 * i, width, output + 4 * i, stride, TILE)
