"""Linear layers: which code multiplies weights of a dtype on this CPU.

    bfloat16    pair_linear.py where the CPU has AMX-BF16 or AVX512-BF16
    float32     oneDNN on CPUs with AVX-512
    float16     oneDNN where the CPU multiplies it itself (bfloat16 too, elsewhere than on x86)
    all others  panel_linear.py

Either way weights are laid out once, at load time, and only that copy is kept. Our own products are
work of the team, and a row has the same bits in any batch. One thread of an Emerald Rapids core, us
per SmolLM2-135M layer (q-k-v, o, gate-up, down) for 1 / 64 / 512 rows, bfloat16: 409 / 763 / 3,730
by tiles, 641 / 921 / 3,553 by oneDNN. Held to AVX512-BF16 both reach 85 GFLOP/s there, and oneDNN
reads weights at half our speed. One thread of a Zen 5 core, ms per layer for 1 / 8 / 64 / 512 rows:
oneDNN's float32 packed 0.45 / 0.63 / 2.2 / 15, F.linear 0.83 / 1.4 / 5.1 / 35.
"""

from collections.abc import Callable

import torch

from octavo.kernels.cpu.amx import HAS_AMX_BF16
from octavo.kernels.cpu.float_panel import IS_WIDE
from octavo.kernels.cpu.pair_dot import HAS_PAIRS
from octavo.kernels.cpu.pair_linear import pair_product
from octavo.kernels.cpu.panel_linear import PanelLinear
from octavo.kernels.cpu.vector import format_of

Linear = Callable[[torch.Tensor], torch.Tensor]

_reorder = torch.ops.mkldnn._reorder_linear_weight.default
_linear = torch.ops.mkldnn._linear_pointwise.default


def _has_pair_product(dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and (HAS_AMX_BF16 or HAS_PAIRS)


def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype on this CPU."""
    if _has_pair_product(dtype) or not torch.backends.mkldnn.is_available():
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
    linear: Linear
    if _has_onednn(weight.dtype):
        linear = _packed(weight, bias)
    elif _has_pair_product(weight.dtype):
        linear = PanelLinear(weight, bias, pair_product(HAS_AMX_BF16))
    else:
        linear = PanelLinear(weight, bias)
    for num_rows in (1, 2):  # compiled, or loaded, before any request
        linear(torch.zeros(num_rows, weight.shape[1], dtype=weight.dtype))
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
