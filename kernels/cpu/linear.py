"""Linear layers: which code multiplies weights of a dtype on this CPU.

    bfloat16, float16   oneDNN where the CPU multiplies them itself, else panel_linear.py
    float32             oneDNN on CPUs with AVX-512, else panel_linear.py

Either way weights are laid out once, at load time, and only that copy is kept. One thread of a
Zen 5 core, ms per SmolLM2-135M layer (q-k-v, o, gate-up, down) for 1 / 8 / 64 / 512 rows: oneDNN's
bfloat16 packed 0.24 / 0.34 / 1.1 / 7.3 against F.linear 0.46 / 0.54 / 1.3 / 7.6; float32 packed
0.45 / 0.63 / 2.2 / 15 against 0.83 / 1.4 / 5.1 / 35.
"""

from collections.abc import Callable

import torch

from octavo.kernels.cpu.float_panel import IS_WIDE
from octavo.kernels.cpu.panel_linear import PanelLinear
from octavo.kernels.cpu.vector import format_of

Linear = Callable[[torch.Tensor], torch.Tensor]

_reorder = torch.ops.mkldnn._reorder_linear_weight.default
_linear = torch.ops.mkldnn._linear_pointwise.default


def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN is the faster one for this dtype on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return IS_WIDE


def is_shared(dtype: torch.dtype, quantization: str | None) -> bool:
    """Whether a team's helpers take part in the products of weights kept so.

    oneDNN's run on one thread, and helpers would spin for nothing meanwhile.
    """
    return quantization is not None or not _has_onednn(dtype)


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """weight: [N, K], bias: [N]; returns x [T, K] -> [T, N]. The caller should drop weight.

    Raises:
        UnsupportedDtype: not float32, bfloat16 or float16.
    """
    format_of(weight.dtype)
    linear = _packed(weight, bias) if _has_onednn(weight.dtype) else PanelLinear(weight, bias)
    linear(torch.zeros(1, weight.shape[1], dtype=weight.dtype))  # compiled, or loaded, by now
    return linear


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
