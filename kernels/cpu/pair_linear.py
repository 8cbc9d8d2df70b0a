"""Linear layers in bfloat16 on CPUs that multiply it themselves, float32 sums rounded once.

    AMX-BF16        for each panel of 16 outputs, for each 32 rows:  pair_panel   --> out [T, N]
    AVX512-BF16     for each panel of 16 outputs, for each six rows:  float_panel of PAIRS

Weights lie the same way for both: pairs of depths. Rows are read where they are, unless their depth
is not a multiple of what is multiplied at once, or, for tiles, they do not begin with cache lines
(six times slower to load); whoever takes a chunk pads a copy then.

A row has the same bits in any batch and on any number of threads, but not by tiles and by dots,
which add in another order. One thread of an Emerald Rapids core that others kept busy, GFLOP/s of
SmolLM2-135M's layer at 16 / 64 / 128 / 512 rows: 255 / 594 / 817 / 972; at one row 17 GB/s.
"""

import functools

import numpy as np
import torch

from octavo.kernels.cpu import amx
from octavo.kernels.cpu.amx import TILE_ROWS
from octavo.kernels.cpu.float_panel import PAIRS, PANEL_ROWS
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import borrow, copy_bytes, give_back, unpacked
from octavo.kernels.cpu.pair_panel import (
    CONFIG_BYTES,
    DEPTHS,
    MOST_ROWS,
    TILE_BYTES,
    WIDE,
    configure,
    finish_pairs,
    pair_panel,
)
from octavo.kernels.cpu.panel_linear import (
    SUMS_BYTES,
    Product,
    Split,
    block_and_panels,
    finish_rows,
    multiply_block,
)
from octavo.kernels.cpu.team import Kernel, kernel
from octavo.kernels.cpu.vector import FORMATS, splat, store_some

FORMAT = FORMATS[torch.bfloat16]
TILE_SUMS_BYTES = MOST_ROWS * 2 * LANES * 4
BLOCK_BYTES = 768 * 1024  # of rows
CHUNK = 8_000_000  # products that are taken at once, some 20 us of tiles
CHUNK_BYTES = 128 * 1024  # of weights, where they are what takes time


@inlined
def _pad_rows(x, x_stride, num_rows, depth, target, padded):
    """Rows of x [num_rows, depth] to [num_rows, padded], zeros at their ends."""
    zeros = splat(np.float32(0.0))
    for row in range(num_rows):
        place = target + row * padded * 2
        copy_bytes(place, x + row * x_stride, depth * 2)
        for i in range(depth, padded, LANES):
            store_some(FORMAT, place, i, min(LANES, padded - i), zeros)


@inlined
def _finish(sums, width, bias, out, count, column):
    """out[count rows, 16 * width columns] = sums + bias, as far as there are columns."""
    target, size, item = out
    if width > 1 and column + width * LANES <= size:
        place = target + column * item
        finish_pairs(sums, bias + column * 4, place, size * item, count, width)
    else:
        finish_rows(FORMAT, sums, width, 1, bias, target, size * item, count, column, size, item)


@inlined
def _multiply_by_tiles(rows, steps, layer, panels, sums, config, out):
    """As multiply_block. Each set of rows fetches a part of the panels that follow."""
    x, x_stride, count = rows
    weight, panel_bytes, bias = layer
    target, size, item = out
    panel, end = panels
    num_sets = (count + MOST_ROWS - 1) // MOST_ROWS
    at_once = WIDE if count <= TILE_ROWS else WIDE // 2
    configured = 0
    while panel < end:
        width = at_once if panel + at_once <= end else 1
        place = weight + panel * panel_bytes
        ahead, lines = place + width * panel_bytes, 0
        if panel + width < end:
            lines = (width * TILE_BYTES // LINE + num_sets - 1) // num_sets
        row = 0
        for s in range(num_sets):
            num = count // num_sets + (1 if s < count % num_sets else 0)
            second = 0 if count <= TILE_ROWS else num // 2
            if num != configured:
                configure(config, num - second, second)
                configured = num
            a = x + row * x_stride, x_stride, num - second, second
            b = place, panel_bytes, steps
            pair_panel(a, b, sums, width, ahead + s * lines * steps * LINE, lines)
            result = target + row * size * item, size, item
            _finish(sums, width, bias, result, num, panel * LANES)
            row += num
        panel += width
    amx.release()


def _multiply(has_tiles: bool) -> Kernel:
    sums_bytes = TILE_SUMS_BYTES if has_tiles else SUMS_BYTES

    @kernel
    def multiply(args, first, last):
        """Items: the panels of the first block of rows, then of the second ..."""
        x, x_stride, num_rows, depth, weight, panel_bytes, bias, out, size, item = unpacked(
            args, 10
        )
        block_rows, padded = unpacked(args + 10 * 8, 2)
        num_panels = (size + LANES - 1) // LANES
        is_copied = padded > depth or (has_tiles and (x | x_stride) % LINE != 0)
        room = borrow(sums_bytes + CONFIG_BYTES + LINE + is_copied * block_rows * padded * 2)
        sums = (room + LINE - 1) // LINE * LINE
        config = sums + sums_bytes
        copy = config + CONFIG_BYTES
        while first < last:
            begin, panels = block_and_panels(first, last, num_panels, block_rows)
            count = min(block_rows, num_rows - begin)
            source, stride = x + begin * x_stride, x_stride
            if is_copied:
                _pad_rows(source, stride, count, depth, copy, padded)
                source, stride = copy, padded * 2
            rows, layer = (source, stride, count), (weight, panel_bytes, bias)
            target = out + begin * size * item, size, item
            if has_tiles:
                steps = padded // DEPTHS
                _multiply_by_tiles(rows, steps, layer, panels, sums, config, target)
            else:
                pairs = padded // 2
                multiply_block(PAIRS, FORMAT, PANEL_ROWS, rows, pairs, layer, panels, sums, target)
            first += panels[1] - panels[0]
        give_back(room)

    return multiply


@functools.lru_cache(maxsize=4096)
def _split(num_rows: int, depth: int, num_panels: int) -> Split:
    """Blocks of equal size, of whole tiles; longer chunks where there are many."""
    num_blocks = -(-num_rows * depth * 2 // BLOCK_BYTES) or 1
    block_rows = -(-num_rows // num_blocks) or 1
    if num_blocks > 1:
        block_rows = -(-block_rows // MOST_ROWS) * MOST_ROWS
    num_items = -(-num_rows // block_rows) * num_panels
    products, panel_bytes = LANES * depth * block_rows, LANES * depth * 2
    at_once = WIDE if block_rows <= MOST_ROWS // 2 else WIDE // 2
    grain = min(CHUNK // products, CHUNK_BYTES // panel_bytes) // at_once * at_once
    return Split(
        block_rows, num_items, max(at_once, grain, min(8 * CHUNK // products, num_items // 32))
    )


@functools.cache
def pair_product(has_tiles: bool) -> Product:
    return Product(_multiply(has_tiles), DEPTHS if has_tiles else 2, _split)
