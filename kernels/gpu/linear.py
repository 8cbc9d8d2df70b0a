"""Linear layers on a GPU: the vendor's matrix product is the kernel, nothing is packed."""

import functools
from collections.abc import Callable

import torch


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """x [T, K] -> x @ weight.T + bias, [T, N]. weight: [N, K], bias: [N]."""
    return functools.partial(torch.nn.functional.linear, weight=weight, bias=bias)
