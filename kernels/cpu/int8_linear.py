"""Linear layers in int8: weights quantised per output once, activations per row at every call.

    x [T, K] --absmax of a group--> bytes, level [T, groups] ------+
    weight [N, K] --absmax of the output--> bytes, scale [N] ------+--> out [T, N]
                                              levels, scales, bias

Everything about a row is made of the row alone and added in one order: it has the same bits in any
batch. One level for the whole row would lose more, as few of its values are far larger than the
rest: SmolLM2-135M chose 88 % of float32's greedy tokens with one, 95 % with groups of 64.

One thread of a Zen 5 core, ms per SmolLM2-135M layer (q-k-v, o, gate-up, down) for 1 / 4 / 8 / 32 /
64 / 512 rows: this 0.13 / 0.17 / 0.21 / 0.42 / 0.72 / 5.1; bfloat16 packed 0.29 / 0.32 / 0.42 /
0.81 / 1.35 / 8.4; oneDNN's int8 with one level a row 0.29 / 0.31 / 0.39 / 0.71 / 1.08 / 5.5;
torch's _weight_int8pack_mm (bfloat16 activations) 0.23 / 0.25 / 0.46 / 1.5 / 3.1. So there is one
kernel for every number of rows.
"""

from collections.abc import Callable

import numpy as np
import torch

from octavo.kernels.cpu.byte_lanes import (
    larger_magnitude,
    largest_magnitude,
    store_bytes,
    write_float,
    write_integer,
)
from octavo.kernels.cpu.byte_panel import PANEL, PANEL_ROWS, QUAD, byte_panel
from octavo.kernels.cpu.jit import inlined, jit
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import borrow, give_back
from octavo.kernels.cpu.vector import (
    FLOAT,
    add,
    format_of,
    load,
    load_some,
    mul,
    splat,
    store,
    store_some,
    sum_lanes,
)

LEVELS = 127
GROUP = 64  # products that share a level, about
OFFSET = 128  # makes a byte of weights unsigned
LINE = 64
ROWS_AT_ONCE = 240  # their bytes stay in the L2 cache while all weights pass by
Linear = Callable[[torch.Tensor], torch.Tensor]


@inlined
def _load_padded(format, source, i, size):
    """Elements i .. i + 15 of source [size], zeros past its end."""
    if i + LANES <= size:
        return load(format, source, i)
    return load_some(format, source, i, max(0, size - i))


@inlined
def _quantize_row(format, source, size, group_size, groups, target, levels, starts):
    """source [size] as bytes at target, with a level and a start (see byte_panel) per group."""
    for group in range(groups):
        begin, end = group * group_size, (group + 1) * group_size
        top = splat(np.float32(0.0))
        for i in range(begin, end, LANES):
            top = larger_magnitude(top, _load_padded(format, source, i, size))
        highest = largest_magnitude(top)
        factor = splat(np.float32(LEVELS) / highest if highest > 0 else np.float32(0.0))
        total = splat(np.float32(0.0))
        for i in range(begin, end, LANES):
            scaled = mul(_load_padded(format, source, i, size), factor)
            total = add(total, store_bytes(target, i, scaled))
        write_float(levels, group, highest / np.float32(LEVELS))
        write_integer(starts, group, sum_lanes(total) * np.float32(-OFFSET))


@inlined
def _finish_row(format, sums, scales, bias, out, size):
    """out[size] = sums * scales + bias; size is at most 64."""
    for i in range(0, size, LANES):
        v = add(mul(load(FLOAT, sums, i), load(FLOAT, scales, i)), load(FLOAT, bias, i))
        if i + LANES <= size:
            store(format, out, i, v)
        else:
            store_some(format, out, i, size - i, v)


@inlined
def _multiply_rows(format, rows, stride, count, groups, group_size, layer, sums, out, size, item):
    """out [count, size] of quantised rows; layer: (weight, scales, bias) of `_int8_linear`."""
    padded = groups * group_size
    for column in range(0, size, PANEL):
        weight, scales, bias = layer
        width = min(PANEL, size - column)
        r = 0
        while r < count:
            row = rows + r * stride
            levels = row + padded
            # Two and two rather than three and one.
            num = 2 if count - r == 4 else min(PANEL_ROWS, count - r)
            byte_panel(
                row,
                stride,
                levels,
                levels + groups * 4,
                stride,
                weight + column * padded,
                groups,
                group_size // QUAD,
                sums,
                num,
            )
            for j in range(num):
                _finish_row(
                    format,
                    sums + j * PANEL * 4,
                    scales + column * 4,
                    bias + column * 4,
                    out + ((r + j) * size + column) * item,
                    width,
                )
            r += num


@jit
def _int8_linear(
    format,
    x,  # [num_rows, depth], x_stride bytes from row to row
    x_stride,
    num_rows,
    depth,
    groups,
    group_size,
    layer,  # weight [panels, groups * group_size / 4, 64, 4] uint8; scales, bias [panels * 64] f32
    out,  # [num_rows, size], contiguous
    size,
    item,
):
    at_once = max(1, min(num_rows, ROWS_AT_ONCE))
    # A row: its bytes, then its levels, then its starts. After the rows the sums of one panel.
    padded = groups * group_size
    stride = (padded + groups * 8 + LINE - 1) // LINE * LINE
    room = borrow(at_once * stride + PANEL_ROWS * PANEL * 4 + LINE)
    rows = (room + LINE - 1) // LINE * LINE
    sums = rows + at_once * stride
    for first in range(0, num_rows, at_once):
        count = min(at_once, num_rows - first)
        for r in range(count):
            row, source = rows + r * stride, x + (first + r) * x_stride
            levels = row + padded
            _quantize_row(
                format, source, depth, group_size, groups, row, levels, levels + groups * 4
            )
        target = out + first * size * item
        _multiply_rows(
            format, rows, stride, count, groups, group_size, layer, sums, target, size, item
        )
    give_back(room)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] as int8 [N, K] and float32 [N] with weight ~ int8 * scale."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1) / LEVELS
    # A row of zeros stays one; a row that is not finite makes its output NaN.
    quotient = (wide / scale.where(scale != 0, 1)[:, None]).round()
    return quotient.nan_to_num(0).clamp(-LEVELS, LEVELS).to(torch.int8), scale


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """weight: [N, K], bias: [N]; returns x [T, K] -> [T, N]. The caller should drop weight."""
    size, depth = weight.shape
    dtype, format, item_bytes = weight.dtype, format_of(weight.dtype), weight.element_size()
    levels, scale = quantize(weight)
    groups, group_size = group_shape(depth)
    packed = _in_panels(levels, groups * group_size)
    padding = (0, -size % PANEL)
    scales = torch.nn.functional.pad(scale, padding)
    shift = torch.zeros_like(scales)
    if bias is not None:
        shift[:size] = bias

    def multiply(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != dtype or x.shape[1] != depth:
            raise TypeError(f"x must be [T, {depth}] {dtype}, got {list(x.shape)} {x.dtype}")
        x = x if x.stride(1) == 1 else x.contiguous()
        out = torch.empty((x.shape[0], size), dtype=dtype)
        _int8_linear(
            format,
            x.data_ptr(),
            x.stride(0) * item_bytes,
            x.shape[0],
            depth,
            groups,
            group_size,
            (packed.data_ptr(), scales.data_ptr(), shift.data_ptr()),
            out.data_ptr(),
            size,
            item_bytes,
        )
        return out

    multiply(torch.zeros(1, depth, dtype=dtype))  # compiled, or loaded, before any request
    return multiply


def group_shape(depth: int) -> tuple[int, int]:
    """How many groups share a row of this length, and how many products each has."""
    groups = max(1, round(depth / GROUP))
    return groups, -(-depth // (groups * LANES)) * LANES


def _in_panels(levels: torch.Tensor, padded_depth: int) -> torch.Tensor:
    """[N, K] int8 to [panels, padded_depth / 4, 64, 4] uint8, padded with zeros, 128 added."""
    size, depth = levels.shape
    padding = (0, padded_depth - depth, 0, -size % PANEL)
    padded = torch.nn.functional.pad(levels, padding)
    panels = padded.view(-1, PANEL, padded_depth // QUAD, QUAD).transpose(1, 2)
    return panels.contiguous().view(torch.uint8) ^ OFFSET
