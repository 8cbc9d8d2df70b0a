"""Linear layers in int4: weights quantised once in groups of 32, activations to int8 at every call.

weight [N, K] --range of 32--> 0 .. 15, scale and minimum [N, groups] float16, scale [N]
"""

import torch

from octavo.kernels.cpu.byte_dot import STEPS
from octavo.kernels.cpu.byte_panel import NIBBLES_KIND
from octavo.kernels.cpu.int8_linear import normalized
from octavo.kernels.cpu.quantized_linear import (
    Linear,
    in_groups,
    in_strips,
    numbers_in_strips,
    pack,
)

LEVELS = 15
MIDDLE = 8
Quantized = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def quantize(weight: torch.Tensor) -> Quantized:
    """weight [N, K] as uint8 (0 .. 15) [N, groups, 32], scales, minima [N, groups], powers [N].

    weight ~ (levels * scales + minima) * powers. Each group takes the better of two ways, those of
    a GGUF file's Q4_1 and Q4_0 (from the least to the greatest; the farthest from zero is level 0
    and zero is level 8), so that weights that were such blocks come back unchanged.
    """
    grouped = in_groups(weight.float())
    low, high = grouped.aminmax(dim=2)
    ranged = (high - low) / LEVELS, low
    farthest = torch.where(-low >= high, low, high)
    centred = farthest / -MIDDLE, farthest
    _, powers = normalized(torch.cat([*ranged, *centred], dim=1))
    best = _levels(grouped, powers, *ranged)
    other = _levels(grouped, powers, *centred)
    is_better = _error(grouped, powers, *other) < _error(grouped, powers, *best)
    levels = other[0].where(is_better[:, :, None], best[0]).to(torch.uint8)
    scales, minima = (o.where(is_better, b) for o, b in zip(other[1:], best[1:], strict=True))
    return levels, scales, minima, powers


def _levels(
    grouped: torch.Tensor, powers: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The levels (in float32) of such scales and minima, once these are rounded; all three."""
    scales, minima = ((v / powers[:, None]).nan_to_num(0).half() for v in (scales, minima))
    step, start = (v.float() * powers[:, None] for v in (scales, minima))
    quotient = (grouped - start[:, :, None]) / step.where(step != 0, 1)[:, :, None]
    return quotient.round_().nan_to_num_(0).clamp_(0, LEVELS), scales, minima


def _error(
    grouped: torch.Tensor,
    powers: torch.Tensor,
    levels: torch.Tensor,
    scales: torch.Tensor,
    minima: torch.Tensor,
) -> torch.Tensor:
    """The squared error of each group."""
    step, start = (v.float() * powers[:, None] for v in (scales, minima))
    return torch.addcmul(start[:, :, None], levels, step[:, :, None]).sub_(grouped).square_().sum(2)


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None = None
) -> Linear:
    """weight: [N, K], bias: [N]; returns x [T, K] -> [T, N] of dtype, or else the weight's.

    The caller should drop weight.
    """
    return pack(weight, bias, dtype or weight.dtype, NIBBLES_KIND, _pack_part)


def _pack_part(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    levels, scales, minima, powers = quantize(weight)
    low, high = in_strips(levels).split(STEPS // 2, dim=2)
    blocks = (low | high << 4).flatten(2)
    numbers = [numbers_in_strips(v) for v in (scales, minima)]
    return torch.cat([blocks, *numbers], dim=2), powers
