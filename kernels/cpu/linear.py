"""Linear layers whose weights are laid out once, at load time, for oneDNN.

One thread of a Zen 5 core, ms per SmolLM2-135M layer (q-k-v, o, gate-up, down) for 1 / 8 / 64 / 512
rows: bfloat16 packed 0.24 / 0.34 / 1.1 / 7.3 against F.linear 0.46 / 0.54 / 1.3 / 7.6; float32
packed 0.45 / 0.63 / 2.2 / 15 against 0.83 / 1.4 / 5.1 / 35. Only the packed copy is
kept: it was never more than 4 % slower (bfloat16 q-k-v at 2,048 rows, 4.77 against 4.61).
"""

from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]

_reorder = torch.ops.mkldnn._reorder_linear_weight.default
_linear = torch.ops.mkldnn._linear_pointwise.default


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has this dtype on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """weight: [N, K], bias: [N]; returns x [T, K] -> [T, N]. The caller should drop weight.

    float16 on a CPU that cannot multiply it is kept as float32, in twice the bytes. For a SmolLM2
    gate-up, float16 F.linear against float32 packed, the conversion of x left out: 0.14 / 0.22 ms
    at 1 row, 1.1 / 0.30 at 8, 9.4 / 1.1 at 64.
    """
    dtype = weight.dtype
    if _can_pack(dtype):
        return _packed(weight, bias)
    if dtype == torch.float16 and _can_pack(torch.float32):
        wide = _packed(weight.float(), None if bias is None else bias.float())
        return lambda x: wide(x.float()).half()
    return lambda x: functional.linear(x, weight, bias)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    packed = _reorder(weight.detach().contiguous())
    if weight.dtype != torch.float32:
        return lambda x: _linear(x, packed, bias, "none", [], "")

    def multiply(x: torch.Tensor) -> torch.Tensor:
        # For one row oneDNN may add in another order than for more, which all agree bit for bit;
        # a second row costs nothing, as the weights are what has to be read.
        rows = x.repeat(2, 1) if x.shape[0] == 1 else x
        out: torch.Tensor = _linear(rows, packed, bias, "none", [], "")
        return out[: x.shape[0]]

    return multiply
