"""A tile of tokens out of paged KV, in 16 bits, row after row; and the same transposed.

    paged rows  --gather-->  [tokens, width]  --transpose-->  [width, tokens]

width is head_dim padded with zeros to a multiple of 32. Tokens out of sight are zeros.
"""

from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import copy_bytes, read_i64
from octavo.kernels.cpu.panels import transpose_short
from octavo.kernels.cpu.vector import FLOAT, load, splat, store

PAIR_WIDTH = 2 * LANES


@inlined
def copy_row(source, target, size, width):
    """target [width] = source [size], of 16 bits, padded with zeros."""
    whole = size // PAIR_WIDTH * PAIR_WIDTH
    for i in range(0, whole // 2, LANES):
        store(FLOAT, target, i, load(FLOAT, source, i))
    if whole < width:
        store(FLOAT, target, whole // 2, splat(ZERO))
        copy_bytes(target + 2 * whole, source + 2 * whole, 2 * (size - whole))


@inlined
def clear_row(target, width):
    for i in range(0, width // 2, LANES):
        store(FLOAT, target, i, splat(ZERO))


@inlined
def gather_rows(base, offsets, sight, end, target, size, width):
    """target[t] = token t of the tile, t < end; offsets begin with the first token in sight."""
    for t in range(min(sight[0], end)):
        clear_row(target + 2 * t * width, width)
    for t in range(sight[0], sight[1]):
        copy_row(base + read_i64(offsets, t - sight[0]), target + 2 * t * width, size, width)
    for t in range(sight[1], end):
        clear_row(target + 2 * t * width, width)


@inlined
def transpose_rows(rows, width, num_tokens, target, stride):
    """target [width, num_tokens] = rows [num_tokens, width]; stride of target in bytes."""
    for t in range(0, num_tokens, PAIR_WIDTH):
        for d in range(0, width, PAIR_WIDTH):
            place = target + d * stride + 2 * t
            transpose_short(rows + 2 * (t * width + d), 2 * width, place, stride)
