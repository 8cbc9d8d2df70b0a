"""Linear layers in float32 arithmetic, their weights kept once in their own dtype.

    x [T, K]  --widen-->  float32, blocks of rows that fit the L2 cache
    for each block, for each panel of 16 outputs, for each six rows:  float_panel  --> out [T, N]

For CPUs that cannot multiply 16-bit floats themselves, and for float32. A block and a panel are an
item of the team's work. Each sum has one order: see float_panel.py.
"""

import torch

from octavo.kernels.cpu import team
from octavo.kernels.cpu.float_panel import (
    IS_WIDE,
    PANEL_ROWS,
    WIDE,
    depths_of_step,
    float_panel,
    pack_panels,
)
from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.mailbox import run_kernel
from octavo.kernels.cpu.memory import borrow, give_back, unpacked
from octavo.kernels.cpu.vector import FLOAT, add, load, load_some, store, store_some

LINE = 64
BLOCK_BYTES = 384 * 1024  # of float32 rows
CHUNK = 400_000  # products that are taken at once, some 10 us
WIDEN_ROWS = 16


@team.kernel_per_format
def _widen(format):
    def widen(args, first, last):
        """Rows of x [num_rows, depth] to float32 [num_rows, padded], zeros at their ends."""
        x, x_stride, out, depth, padded = unpacked(args, 5)
        whole = depth // LANES * LANES
        for row in range(first, last):
            source, target = x + row * x_stride, out + row * padded * 4
            for i in range(0, whole, LANES):
                store(FLOAT, target, i, load(format, source, i))
            if whole < padded:
                rest = load_some(format, source, whole, depth - whole)
                store_some(FLOAT, target, whole, padded - whole, rest)

    return widen


@inlined
def _finish_rows(format, sums, width, bias, out, out_stride, num_rows, column, size, item):
    """out[rows, column .. column + 16 * width - 1] = sums + bias, as far as there are columns."""
    for r in range(num_rows):
        for v in range(width):
            begin = column + v * LANES
            total = add(load(FLOAT, sums, (r * width + v) * LANES), load(FLOAT, bias, begin))
            if begin + LANES <= size:
                store(format, out + r * out_stride, begin, total)
            else:
                store_some(format, out + r * out_stride, begin, size - begin, total)


@inlined
def _panels_at_once(num_rows):
    if IS_WIDE or num_rows == 1:
        return WIDE
    return 2 if num_rows == 2 else 1


@team.kernel_per_format
def _multiply(format):
    def multiply(args, first, last):
        """Items: num_panels panels of the first block of rows, then of the second ..."""
        (x, x_stride, num_rows, depth, weight, panel_bytes, bias, out, size, item, block_rows) = (
            unpacked(args, 11)
        )
        num_panels = (size + LANES - 1) // LANES
        room = borrow(PANEL_ROWS * WIDE * LANES * 4 + LINE)
        sums = (room + LINE - 1) // LINE * LINE
        while first < last:
            block = first // num_panels
            end = min(last, (block + 1) * num_panels)
            begin = block * block_rows
            count = min(block_rows, num_rows - begin)
            num_sets = (count + PANEL_ROWS - 1) // PANEL_ROWS
            at_once = _panels_at_once(count)
            while first < end:
                panel = first - block * num_panels
                width = at_once if first + at_once <= end else 1
                row = begin
                for s in range(num_sets):
                    rows = count // num_sets + (1 if s < count % num_sets else 0)
                    source, target = x + row * x_stride, out + row * size * item
                    place = weight + panel * panel_bytes
                    float_panel(
                        format, source, x_stride, place, panel_bytes, depth, sums, rows, width
                    )
                    column = panel * LANES
                    _finish_rows(
                        format, sums, width, bias, target, size * item, rows, column, size, item
                    )
                    row += rows
                first += width
        give_back(room)

    return multiply


@jit
def _linear(mailbox, kernels, x, x_stride, num_rows, depth, layer, out, size, item):
    """kernels: addresses (widen, multiply), 0 for rows that are float32 already;
    layer: (weight, bytes of a panel, bias [panels * 16] float32, depths of a step)."""
    widen, multiply = kernels
    weight, panel_bytes, bias, depths = layer
    padded = (depth + depths - 1) // depths * depths
    num_blocks = max(1, (num_rows * padded * 4 + BLOCK_BYTES - 1) // BLOCK_BYTES)
    block_rows = max(1, (num_rows + num_blocks - 1) // num_blocks)
    num_blocks = (num_rows + block_rows - 1) // block_rows
    items = num_blocks * ((size + LANES - 1) // LANES)
    grain = max(1, CHUNK // (LANES * depth * max(block_rows, PANEL_ROWS)))
    grain = max(grain, min(8 * grain, items // 32))
    if IS_WIDE or block_rows <= 2:
        grain = (grain + WIDE - 1) // WIDE * WIDE
    room, wide, wide_stride = 0, x, x_stride
    if widen != 0:
        room = borrow(num_rows * padded * 4 + LINE)
        wide, wide_stride = (room + LINE - 1) // LINE * LINE, padded * 4
        run_kernel(mailbox, widen, (x, x_stride, wide, depth, padded), num_rows, WIDEN_ROWS)
    args = (wide, wide_stride, num_rows, depth, weight, panel_bytes, bias, out, size, item)
    run_kernel(mailbox, multiply, (*args, block_rows), items, grain)
    if widen != 0:
        give_back(room)


class PanelLinear:
    """x [T, K] -> [T, N]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [N, K], bias: [N]. The caller should drop weight."""
        self._size, self._depth = weight.shape
        self._dtype, self._item_bytes = weight.dtype, weight.element_size()
        self._weight = pack_panels(weight)
        self._bias = torch.zeros(self._weight.shape[0] * LANES)
        if bias is not None:
            self._bias[: self._size] = bias
        widen = 0 if self._dtype == torch.float32 else _widen(self._dtype).address
        self._kernels = (widen, _multiply(self._dtype).address)
        panel_bytes = self._weight[0].numel() * self._item_bytes
        depths = depths_of_step(self._dtype)
        self._layer = (self._weight.data_ptr(), panel_bytes, self._bias.data_ptr(), depths)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, depth = x.shape
        if x.dtype != self._dtype or depth != self._depth:
            raise TypeError(
                f"x must be [T, {self._depth}] {self._dtype}, got {list(x.shape)} {x.dtype}"
            )
        x = x if x.stride(1) == 1 else x.contiguous()
        out = torch.empty((num_rows, self._size), dtype=self._dtype)
        _linear(
            team.mailbox(),
            self._kernels,
            x.data_ptr(),
            x.stride(0) * self._item_bytes,
            num_rows,
            depth,
            self._layer,
            out.data_ptr(),
            self._size,
            self._item_bytes,
        )
        return out
