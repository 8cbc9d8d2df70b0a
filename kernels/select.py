"""The kernels' one seam: the operations every device offers, and which module serves a device.

    for_device(cpu)  -> kernels/cpu/ops.py   (numba; never imports triton)
    for_device(cuda) -> kernels/gpu/ops.py   (Triton; NVIDIA and AMD, both "cuda" to torch)

kernels/reference.py offers the same operations and is what both are tested against.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from octavo.kernels.prefix_groups import PrefixGroups

Linear = Callable[[torch.Tensor], torch.Tensor]
PackLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]


class UnsupportedDevice(ValueError):
    """No kernels exist for this device type."""


class UnsupportedQuantization(ValueError):
    """A device has no kernels for weights kept so."""


class UnsupportedKvDtype(ValueError):
    """A device has no kernels for a cache of this dtype."""


class Kernels(Protocol):
    """What a model's forward pass calls; kernels/reference.py says what each one computes."""

    def embed(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...

    def rotary_store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_layer: torch.Tensor,
        slot_mapping: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None = None,
        eps: float = 0.0,
    ) -> torch.Tensor: ...

    def decode_attention(
        self,
        query: torch.Tensor,
        kv_layer: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        scale: float,
        sliding_window: int = 0,
    ) -> torch.Tensor: ...

    def grouped_decode_attention(
        self,
        query: torch.Tensor,
        kv_layer: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        groups: PrefixGroups,
        scale: float,
    ) -> torch.Tensor: ...

    def prefill_attention(
        self,
        query: torch.Tensor,
        kv_layer: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        query_start: torch.Tensor,
        scale: float,
        sliding_window: int = 0,
    ) -> torch.Tensor: ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def pack_linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Callable[[torch.Tensor], torch.Tensor]: ...


def for_device(device: torch.device) -> Kernels:
    """The kernels that run on device; their compilers are imported only now."""
    if device.type == "cpu":
        from octavo.kernels.cpu import ops as cpu_ops

        return cpu_ops
    if device.type == "cuda":
        from octavo.kernels.gpu import ops as gpu_ops

        return gpu_ops
    raise UnsupportedDevice(f"no kernels for device type {device.type!r}; there are: cpu, cuda")


def packer_for(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, precision: str | None
) -> PackLinear:
    """What turns the weights of a layer into its product of rows in dtype.

    precision: of the weights from then on: int8, int4, or as they come (None).

    Raises:
        UnsupportedQuantization: device cannot multiply weights kept so.
    """
    if precision is None:
        return kernels.pack_linear
    if precision == "int8" and device.type == "cpu":
        from octavo.kernels.cpu import int8_linear

        return partial(int8_linear.pack_linear, dtype=dtype)
    if precision == "int4" and device.type == "cpu":
        from octavo.kernels.cpu import int4_linear

        return partial(int4_linear.pack_linear, dtype=dtype)
    raise UnsupportedQuantization(f"quantization {precision} does not run on {device.type}")


def check_kv_dtype(device: torch.device, kv_dtype: torch.dtype) -> None:
    """Raise UnsupportedKvDtype if device's kernels cannot keep their cache so."""
    if kv_dtype != torch.float8_e4m3fn:
        return
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnsupportedKvDtype(f"an fp8 cache needs an NVIDIA GPU, not {device.type}")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        raise UnsupportedKvDtype(f"an fp8 cache needs a GPU of 8.9 or later, not {capability}")
