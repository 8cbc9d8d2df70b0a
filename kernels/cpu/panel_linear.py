"""Linear layers in float32 arithmetic, their weights kept once in their own dtype.

    for each block of rows that fits the L2 cache:  x --widen--> float32
        for each panel of 16 outputs, for each six rows:  float_panel  --> out [T, N]

For CPUs that cannot multiply 16-bit floats themselves, and for float32. A block and a panel are an
item of the team's work; whoever takes a chunk widens its rows. Each sum has one order: see
float_panel.py. One row alone is multiplied by four panels of four quarters of the outputs at once:
a core reads four distant streams faster than one.

One thread of a Zen 3 core that others kept busy, ms of CPU time per SmolLM2-135M layer (q-k-v, o,
gate-up, down) for 1 / 8 / 32 rows: bfloat16 0.52 / 1.04 / 3.2, float32 0.99 / 1.9 / 3.9; oneDNN's
packed float32 1.8 / 2.7 / 5.2. From 8 rows on 80 to 89 GFLOP/s, of some 100.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from octavo.kernels.cpu.float_panel import (
    IS_WIDE,
    PANEL_ROWS,
    WIDE,
    depths_of_step,
    float_panel,
    most_rows,
    pack_panels,
)
from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import borrow, give_back, unpacked
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.team import Kernel, kernel_per_format, run
from octavo.kernels.cpu.vector import FLOAT, add, load, load_some, store, store_some

SUMS_BYTES = PANEL_ROWS * WIDE * LANES * 4
BLOCK_BYTES = 384 * 1024  # of float32 rows
CHUNK = 400_000  # products that are taken at once, some 10 us


@inlined
def _widen_rows(format, x, x_stride, num_rows, depth, target, padded):
    """Rows of x [num_rows, depth] to float32 [num_rows, padded], zeros at their ends."""
    whole = depth // LANES * LANES
    for row in range(num_rows):
        source, place = x + row * x_stride, target + row * padded * 4
        for i in range(0, whole, LANES):
            store(FLOAT, place, i, load(format, source, i))
        if whole < padded:
            rest = load_some(format, source, whole, depth - whole)
            store_some(FLOAT, place, whole, padded - whole, rest)


@inlined
def finish_rows(format, sums, width, apart, bias, out, out_stride, num_rows, column, size, item):
    """out[rows, 16 columns of each panel] = sums + bias, as far as there are columns.

    The first panel's columns begin with `column`; panels are `apart` panels from one another.
    """
    for r in range(num_rows):
        for v in range(width):
            begin = column + v * apart * LANES
            total = add(load(FLOAT, sums, (r * width + v) * LANES), load(FLOAT, bias, begin))
            if begin + LANES <= size:
                store(format, out + r * out_stride, begin, total)
            else:
                store_some(format, out + r * out_stride, begin, size - begin, total)


@inlined
def _panels_at_once(num_rows):
    if IS_WIDE:
        return WIDE
    return 2 if num_rows == 2 else 1


@inlined
def multiply_block(panel_format, format, most, rows, depth, layer, panels, sums, out):
    """Panels (first, end) for the rows of one block, at most `most` at once.

    panel_format: see float_panel; format: of the result;
    rows: (address, stride, count); layer: (weight, bytes of a panel, bias); out: (address of the
    first row, size, item bytes).
    """
    x, x_stride, count = rows
    weight, panel_bytes, bias = layer
    target, size, item = out
    panel, end = panels
    num_sets = (count + most - 1) // most
    at_once = _panels_at_once(count)
    while panel < end:
        width = at_once if panel + at_once <= end else 1
        place, column = weight + panel * panel_bytes, panel * LANES
        row = 0
        for s in range(num_sets):
            num = count // num_sets + (1 if s < count % num_sets else 0)
            source, result = x + row * x_stride, target + row * size * item
            float_panel(panel_format, source, x_stride, place, panel_bytes, depth, sums, num, width)
            finish_rows(format, sums, width, 1, bias, result, size * item, num, column, size, item)
            row += num
        panel += width


@inlined
def block_and_panels(first, last, num_panels, block_rows):
    """(first row, (first panel, their end)) of a block that items first .. last - 1 begin with."""
    block = first // num_panels
    panels = first - block * num_panels, min(num_panels, last - block * num_panels)
    return block * block_rows, panels


@kernel_per_format
def _multiply(format):
    has_floats = format is FLOAT
    most = most_rows(format)

    def multiply(args, first, last):
        """Items: the panels of the first block of rows, then of the second ..."""
        x, x_stride, num_rows, depth, weight, panel_bytes, bias, out, size, item = unpacked(
            args, 10
        )
        block_rows, padded = unpacked(args + 10 * 8, 2)
        num_panels = (size + LANES - 1) // LANES
        room_for_rows = 0 if has_floats else block_rows * padded * 4
        room = borrow(SUMS_BYTES + room_for_rows + LINE)
        sums = (room + LINE - 1) // LINE * LINE
        wide = sums + SUMS_BYTES
        while first < last:
            begin, panels = block_and_panels(first, last, num_panels, block_rows)
            count = min(block_rows, num_rows - begin)
            source, stride = x + begin * x_stride, x_stride
            if not has_floats:
                _widen_rows(format, source, stride, count, depth, wide, padded)
                source, stride = wide, padded * 4
            rows, layer = (source, stride, count), (weight, panel_bytes, bias)
            target = out + begin * size * item, size, item
            multiply_block(format, format, most, rows, depth, layer, panels, sums, target)
            first += panels[1] - panels[0]
        give_back(room)

    return multiply


@kernel_per_format
def _multiply_row(format):
    has_floats = format is FLOAT

    def multiply_row(args, first, last):
        """Items: panels i, i + items, i + 2 * items, i + 3 * items, at once, for one row."""
        x, x_stride, _, depth, weight, panel_bytes, bias, out, size, item = unpacked(args, 10)
        _, padded = unpacked(args + 10 * 8, 2)
        num_panels = (size + LANES - 1) // LANES
        apart = (num_panels + WIDE - 1) // WIDE
        room = borrow(SUMS_BYTES + padded * 4 + LINE)
        sums = (room + LINE - 1) // LINE * LINE
        source = x
        if not has_floats:
            source = sums + SUMS_BYTES
            _widen_rows(format, x, x_stride, 1, depth, source, padded)
        for own in range(first, last):
            end = min(num_panels, own + WIDE * apart)
            width = WIDE if own + (WIDE - 1) * apart < num_panels else 1
            for panel in range(own, end, width * apart):
                place, column = weight + panel * panel_bytes, panel * LANES
                float_panel(format, source, 0, place, apart * panel_bytes, depth, sums, 1, width)
                finish_rows(format, sums, width, apart, bias, out, 0, 1, column, size, item)
        give_back(room)

    return multiply_row


@dataclass(frozen=True, slots=True)
class Split:
    """How a number of rows becomes items of work."""

    block_rows: int
    num_items: int
    grain: int


@functools.lru_cache(maxsize=4096)
def _split(num_rows: int, depth: int, num_panels: int) -> Split:
    """Blocks of equal size; longer chunks where there are many, short of 200 us."""
    num_blocks = -(-num_rows * depth * 4 // BLOCK_BYTES) or 1
    block_rows = -(-num_rows // num_blocks) or 1
    num_items = -(-num_rows // block_rows) * num_panels
    products = LANES * depth * max(block_rows, PANEL_ROWS)
    grain = max(WIDE, CHUNK // products // WIDE * WIDE)
    return Split(block_rows, num_items, max(grain, min(8 * CHUNK // products, num_items // 32)))


@dataclass(frozen=True, slots=True)
class Product:
    """How rows are multiplied by panels."""

    kernel: Kernel
    depths: int  # panels and copies of rows are padded to a multiple of it
    split: Callable[[int, int, int], Split]  # of rows, depth, panels
    row_kernel: Kernel | None = None  # for one row, whose items are WIDE panels


@functools.cache
def float_product(dtype: torch.dtype) -> Product:
    """In float32 arithmetic."""
    row_kernel = None if IS_WIDE else _multiply_row(dtype)
    return Product(_multiply(dtype), depths_of_step(dtype), _split, row_kernel)


class PanelLinear:
    """x [T, K] -> [T, N]."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, product: Product | None = None
    ) -> None:
        """weight: [N, K], bias: [N]; product: of this dtype. The caller should drop weight."""
        self._size, self._depth = weight.shape
        self._dtype, self._item_bytes = weight.dtype, weight.element_size()
        self._product = product or float_product(weight.dtype)
        self._padded = -(-self._depth // self._product.depths) * self._product.depths
        self._weight = pack_panels(functional.pad(weight.detach(), (0, self._padded - self._depth)))
        self._bias = torch.zeros(self._weight.shape[0] * LANES)
        if bias is not None:
            self._bias[: self._size] = bias
        panel_bytes = self._weight[0].numel() * self._item_bytes
        self._layer = (self._weight.data_ptr(), panel_bytes, self._bias.data_ptr())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, depth = x.shape
        if x.dtype != self._dtype or depth != self._depth:
            raise TypeError(
                f"x must be [T, {self._depth}] {self._dtype}, got {list(x.shape)} {x.dtype}"
            )
        x = x if x.stride(1) == 1 else x.contiguous()
        out = empty((num_rows, self._size), self._dtype)
        split = self._product.split(num_rows, depth, self._weight.shape[0])
        item = self._item_bytes
        rows = (x.data_ptr(), x.stride(0) * item, num_rows, depth)
        result = (out.data_ptr(), self._size, item)
        args = (*rows, *self._layer, *result, split.block_rows, self._padded)
        if num_rows == 1 and self._product.row_kernel is not None:
            num_items, grain = -(-split.num_items // WIDE), split.grain // WIDE
            run(self._product.row_kernel, args, num_items, grain)
        else:
            run(self._product.kernel, args, split.num_items, split.grain)
        return out
