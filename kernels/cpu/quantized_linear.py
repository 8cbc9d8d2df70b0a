"""Linear layers of weights in bytes or half bytes: one loop for both, whatever the CPU.

    x [T, K] --byte_rows--> rows of bytes --byte_panel, strip by strip--> out [T, N]
                                                scale, bias of each output

Strip by strip for all rows; for few rows, which take no longer than the weights do to be read, some
strips at once (`_streams`).

Everything about a row is made of the row alone and added in one order: it has the same bits in any
batch, and on any number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from octavo.kernels.cpu.byte_dot import GROUP, QUAD, STEPS
from octavo.kernels.cpu.byte_panel import (
    BYTES_KIND,
    FETCHED,
    NIBBLES_KIND,
    PANEL_ROWS,
    PARTS,
    STRIP,
    quantized_panel,
)
from octavo.kernels.cpu.byte_rows import quantize_row, row_bytes
from octavo.kernels.cpu.heads import ZERO
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, give_back, unpacked
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.team import Kernel, kernel_per_format, run
from octavo.kernels.cpu.vector import FLOAT, add, load, mul, splat, store, store_some

BLOCK_BYTES = 192 << 10  # of rows: they stay in the L2 cache while all weights pass by
# How much one thread does at once, some 20 us of it: rows to quantise, products, bytes of weights.
ROWS_AT_ONCE, PRODUCTS_AT_ONCE, BYTES_AT_ONCE = 64, 1 << 20, 1 << 17
STREAMS = 4  # of weights that are read at once for few rows
OUTPUTS_AT_ONCE = 1024  # packed together, in float32
Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K] as the kernel reads it."""

    kind: np.generic  # of byte_panel
    strips: torch.Tensor  # [ceil(N / STRIP), groups, bytes of a block] uint8
    scales: torch.Tensor  # [N] float32: of an output, beside those of its groups
    shape: tuple[int, int]


def _rows(parts: int) -> Callable[[torch.dtype], Kernel]:
    """Items are rows: x [num_rows, depth] to rows of bytes."""

    @kernel_per_format
    def of_format(format):
        def quantize_rows(args, first, last):
            x, x_stride, depth, groups, rows = unpacked(args, 5)
            stride = row_bytes(parts, groups)
            for r in range(first, last):
                quantize_row(parts, format, x + r * x_stride, depth, groups, rows + r * stride)

        return quantize_rows

    return of_format


@inlined
def _finish_rows(format, sums, num_rows, column, layer, out, size, item):
    """out[rows, STRIP columns from `column` on] = sums * scales + bias, as far as there are any."""
    scales, bias = layer[0] + column * 4, layer[1] + column * 4
    width = min(STRIP, size - column)
    for r in range(num_rows):
        total, target = sums + r * STRIP * 4, out + (r * size + column) * item
        for i in range(0, width, LANES):
            v = add(mul(load(FLOAT, total, i), load(FLOAT, scales, i)), load(FLOAT, bias, i))
            if i + LANES <= width:
                store(format, target, i, v)
            else:
                store_some(format, target, i, width - i, v)


@inlined
def _add_groups(kind, parts, row, stride, num_rows, groups, part, sums):
    """Add to sums [num_rows, STRIP] what a part of a strip's groups makes.

    part: (first group, their number, where they are, what is fetched meanwhile)
    """
    first, count, source, ahead = part
    levels = row + groups * parts * GROUP + first * 4
    bytes_of = row + first * parts * GROUP
    quantized_panel(
        kind, bytes_of, levels, groups * 4, stride, source, count, sums, STRIP * 4, ahead, num_rows
    )


@inlined
def _clear(sums, count):
    for i in range(0, count * STRIP, LANES):
        store(FLOAT, sums, i, splat(ZERO))


def _cells(kind: np.generic) -> Callable[[torch.dtype], Kernel]:
    """Items are strips of a block of rows, blocks one after the other."""

    parts = PARTS[kind.dtype.name]

    @kernel_per_format
    def of_format(format):
        def multiply_cells(args, first, last):
            rows, num_rows, block, groups, weight, strip_bytes = unpacked(args, 6)
            scales, bias, out, size, item = unpacked(args + 48, 5)
            stride, strips = row_bytes(parts, groups), (size + STRIP - 1) // STRIP
            sums = borrow(PANEL_ROWS * STRIP * 4)
            for cell in range(first, last):
                r, column = cell // strips * block, cell % strips * STRIP
                end = min(num_rows, r + block)
                strip = weight + column // STRIP * strip_bytes
                ahead = strip + strip_bytes
                while r < end:
                    # As even as can be: two and two rather than three and one.
                    tiles = (end - r + PANEL_ROWS - 1) // PANEL_ROWS
                    num = (end - r + tiles - 1) // tiles
                    row = rows + r * stride
                    _clear(sums, num)
                    part = (0, groups, strip, ahead)
                    _add_groups(kind, parts, row, stride, num, groups, part, sums)
                    target = out + r * size * item
                    _finish_rows(format, sums, num, column, (scales, bias), target, size, item)
                    # The strip that follows is fetched once.
                    ahead += groups * FETCHED
                    ahead = ahead if ahead < strip + 2 * strip_bytes else strip
                    r += num
            give_back(sums)

        return multiply_cells

    return of_format


def _streams(kind: np.generic) -> Callable[[torch.dtype], Kernel]:
    """Items are strips i, i + items, i + 2 * items ..., for at most PANEL_ROWS rows.

    A group of each is taken in turn: by itself a core fetches several distant streams faster than
    one, or than what it is told to fetch.
    """

    parts = PARTS[kind.dtype.name]

    @kernel_per_format
    def of_format(format):
        def multiply_streams(args, first, last):
            rows, num_rows, _, groups, weight, strip_bytes = unpacked(args, 6)
            scales, bias, out, size, item = unpacked(args + 48, 5)
            stride, strips = row_bytes(parts, groups), (size + STRIP - 1) // STRIP
            apart = (strips + STREAMS - 1) // STREAMS
            strip_sums, group_bytes = num_rows * STRIP * 4, strip_bytes // groups
            sums = borrow(STREAMS * strip_sums)
            for own in range(first, last):
                _clear(sums, STREAMS * num_rows)
                end = min(STREAMS, (strips - own + apart - 1) // apart)
                for group in range(groups):
                    for k in range(end):
                        source = weight + (own + k * apart) * strip_bytes + group * group_bytes
                        place = sums + k * strip_sums
                        part = (group, 1, source, source)
                        _add_groups(kind, parts, rows, stride, num_rows, groups, part, place)
                for k in range(end):
                    column, place = (own + k * apart) * STRIP, sums + k * strip_sums
                    layer = (scales, bias)
                    _finish_rows(format, place, num_rows, column, layer, out, size, item)
            give_back(sums)

        return multiply_streams

    return of_format


_ROWS = {parts: _rows(parts) for parts in set(PARTS.values())}
_CELLS = {kind.dtype.name: _cells(kind) for kind in (BYTES_KIND, NIBBLES_KIND)}
_STREAMS = {kind.dtype.name: _streams(kind) for kind in (BYTES_KIND, NIBBLES_KIND)}


class QuantizedLinear:
    """The product x [T, K] -> [T, N] of x in dtype."""

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        self._size, self._depth = weight.shape
        self._dtype, self._strips = dtype, weight.strips
        self._groups = weight.strips.shape[1]
        kind = weight.kind.dtype.name
        self._quantize, self._multiply = _ROWS[PARTS[kind]](dtype), _CELLS[kind](dtype)
        self._multiply_few = _STREAMS[kind](dtype)
        padded = len(weight.strips) * STRIP
        self._scales, self._bias = torch.zeros(padded), torch.zeros(padded)
        self._scales[: self._size] = weight.scales
        if bias is not None:
            self._bias[: self._size] = bias
        self._stride = row_bytes.py_func(PARTS[kind], self._groups)
        self._block = max(1, BLOCK_BYTES // (self._stride * PANEL_ROWS)) * PANEL_ROWS
        self._most: int = BYTES_AT_ONCE // weight.strips[0].nbytes
        self._weight = (weight.strips.data_ptr(), weight.strips[0].nbytes)
        for num_rows in (1, PANEL_ROWS + 1):  # compiled, or loaded, before any request
            self(torch.zeros(num_rows, self._depth, dtype=dtype))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, size, depth = x.shape[0], self._size, self._depth
        if x.dtype != self._dtype or x.shape[1] != depth:
            raise TypeError(f"x must be [T, {depth}] {self._dtype}, got {list(x.shape)} {x.dtype}")
        x = x if x.stride(1) == 1 else x.contiguous()
        out = empty((num_rows, size), self._dtype)
        rows = empty((num_rows * self._stride,), torch.uint8)
        source = (x.data_ptr(), x.stride(0) * x.itemsize, depth, self._groups, rows.data_ptr())
        run(self._quantize, source, num_rows, ROWS_AT_ONCE)
        inputs = (rows.data_ptr(), num_rows, self._block, self._groups, *self._weight)
        outputs = (self._scales.data_ptr(), self._bias.data_ptr(), out.data_ptr(), size, x.itemsize)
        blocks, strips = -(-num_rows // self._block), -(-size // STRIP)
        grain = self._grain(num_rows)
        if num_rows <= PANEL_ROWS:
            grain = max(1, grain // STREAMS)
            run(self._multiply_few, inputs + outputs, -(-strips // STREAMS), grain)
        else:
            run(self._multiply, inputs + outputs, blocks * strips, grain)
        return out

    def _grain(self, num_rows: int) -> int:
        """Cells that are taken at once."""
        products: int = min(num_rows, self._block) * STRIP * self._groups * GROUP
        return max(1, min(PRODUCTS_AT_ONCE // max(1, products), self._most))


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    kind: np.generic,
    pack_part: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> Linear:
    """The product by weight [N, K]; pack_part: some of its rows to strips and scales."""
    parts = [pack_part(part) for part in weight.split(OUTPUTS_AT_ONCE)]
    strips, scales = (torch.cat(part) for part in zip(*parts, strict=True))
    size, depth = weight.shape
    packed = QuantizedWeight(kind, strips, scales[:size], (size, depth))
    return QuantizedLinear(packed, bias, dtype)


def in_groups(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] as [padded N, groups, GROUP], padded with zeros to whole strips."""
    size, depth = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -depth % GROUP, 0, -size % STRIP))
    return padded.view(len(padded), -1, GROUP)


def in_strips(grouped: torch.Tensor) -> torch.Tensor:
    """[padded N, groups, GROUP] bytes as [strips, groups, STEPS, STRIP * QUAD]."""
    size, groups, _ = grouped.shape
    split = grouped.view(size // STRIP, STRIP, groups, STEPS, QUAD)
    return split.permute(0, 2, 3, 1, 4).reshape(size // STRIP, groups, STEPS, STRIP * QUAD)


def numbers_in_strips(numbers: torch.Tensor) -> torch.Tensor:
    """[padded N, groups] as float16 bytes, [strips, groups, STRIP * 2]."""
    size, groups = numbers.shape
    split = numbers.half().view(size // STRIP, STRIP, groups).transpose(1, 2)
    return split.contiguous().view(torch.uint8)
