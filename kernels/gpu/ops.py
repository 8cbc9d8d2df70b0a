"""The GPU kernels, collected: one name per operation, signatures as in kernels/reference.py."""

from octavo.kernels.gpu.decode_attention import decode_attention
from octavo.kernels.gpu.linear import pack_linear
from octavo.kernels.gpu.prefill_attention import prefill_attention
from octavo.kernels.gpu.rms_norm import add_rms_norm, rms_norm
from octavo.kernels.gpu.rotary_store import rotary_store_kv
from octavo.kernels.gpu.shared_attention import grouped_decode_attention
from octavo.kernels.gpu.silu_mul import silu_mul
from octavo.kernels.reference import embed  # torch's own is a single kernel

__all__ = [
    "add_rms_norm",
    "decode_attention",
    "embed",
    "grouped_decode_attention",
    "pack_linear",
    "prefill_attention",
    "rms_norm",
    "rotary_store_kv",
    "silu_mul",
]
