"""Linear layers in int8: weights quantised once in groups of 32, activations at every call.

weight [N, K] --absmax of 32--> int8, scale [N, groups] float16, scale [N]
"""

import torch

from octavo.kernels.cpu.byte_dot import BYTE_DOT, OFFSET
from octavo.kernels.cpu.byte_panel import BYTES_KIND
from octavo.kernels.cpu.quantized_linear import (
    Linear,
    in_groups,
    in_strips,
    numbers_in_strips,
    pack,
)

LEVELS = 127


def normalized(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """scales [N, groups] as float16 of at most 1 and a power of two [N], which is not rounded.

    A row that is not finite gets NaN for its power, and with it its output.
    """
    _, exponents = torch.frexp(scales.abs().amax(dim=1))
    powers = torch.ldexp(torch.ones(len(scales)), exponents)
    is_finite = scales.isfinite().all(dim=1)
    rounded = (scales / powers[:, None]).where(is_finite[:, None], 0).half()
    return rounded, powers.where(is_finite, torch.nan)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight [N, K] as int8 [N, groups, 32], float16 [N, groups] and float32 [N].

    weight ~ the product of the three. Weights that were 8-bit blocks of a GGUF file come back so.
    """
    grouped = in_groups(weight.float())
    scales, powers = normalized(grouped.abs().amax(dim=2) / LEVELS)
    step = scales.float() * powers[:, None]
    quotient = (grouped / step.where(step != 0, 1)[:, :, None]).round()
    return quotient.nan_to_num(0).clamp(-LEVELS, LEVELS).to(torch.int8), scales, powers


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None = None
) -> Linear:
    """weight: [N, K], bias: [N]; returns x [T, K] -> [T, N] of dtype, or else the weight's.

    The caller should drop weight.
    """
    return pack(weight, bias, dtype or weight.dtype, BYTES_KIND, _pack_part)


def _pack_part(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    levels, scales, powers = quantize(weight)
    signed = in_strips(levels).view(torch.uint8)
    blocks = (signed ^ OFFSET if BYTE_DOT.is_offset else signed).flatten(2)
    return torch.cat([blocks, numbers_in_strips(scales)], dim=2), powers
