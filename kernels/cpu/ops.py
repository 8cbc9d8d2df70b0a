"""The CPU kernels under the names and signatures of `octavo.kernels.reference`.

Dtypes: float32, bfloat16, float16. Everything but the linear layers is numba code, compiled on
first use for each dtype and kept in a cache on disk; `warm_up` gets that over with.
"""

import numpy as np
import torch

from octavo.kernels.cpu.activation import silu_mul
from octavo.kernels.cpu.argmax import argmax
from octavo.kernels.cpu.decode import decode_attention
from octavo.kernels.cpu.embedding import embed
from octavo.kernels.cpu.linear import pack_linear
from octavo.kernels.cpu.norm import add_rms_norm, rms_norm
from octavo.kernels.cpu.prefill import prefill_attention
from octavo.kernels.cpu.program import Program
from octavo.kernels.cpu.rotary import rotary
from octavo.kernels.cpu.rotary_store import rotary_store_kv
from octavo.kernels.cpu.shared import grouped_decode_attention
from octavo.kernels.cpu.softmax_weights import weigh
from octavo.kernels.cpu.store import store_kv
from octavo.kernels.cpu.token_draw import draw_rows
from octavo.kernels.prefix_groups import PrefixGroups

__all__ = [
    "add_rms_norm",
    "decode_attention",
    "embed",
    "grouped_decode_attention",
    "pack_linear",
    "prefill_attention",
    "rms_norm",
    "rotary",
    "rotary_store_kv",
    "silu_mul",
    "store_kv",
    "warm_up",
]


def warm_up(dtype: torch.dtype) -> None:
    """Compile every kernel for `dtype`, or load it from the cache, so that no request waits."""
    head = torch.zeros(1, 1, 16, dtype=dtype)
    kv_layer = torch.zeros(1, 2, 1, 8, 16, dtype=dtype)
    table, length = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    query_start = torch.tensor([0, 1], dtype=torch.int32)
    angles = torch.zeros(1, 8)
    row, weight = head.view(1, 16), torch.ones(16, dtype=dtype)
    slot = torch.zeros(1, dtype=torch.int64)
    rotary_store_kv(head, head, head, angles, angles, kv_layer, slot)
    decode_attention(head, kv_layer, table, length, 1.0)
    prefill_attention(head, kv_layer, table, length, query_start, 1.0)
    argmax(row)
    weigh(np.zeros(1, dtype=np.float32), 0.0, 1.0)
    draw_rows(row, np.zeros(1, np.int64), np.ones((1, 5)), np.zeros(1, np.int64))
    none = torch.zeros(0, dtype=torch.int32)
    groups = PrefixGroups(none, query_start[:1], none, none, length - 1, 0, 0, 0)
    grouped_decode_attention(head, kv_layer, table, length, groups, 1.0)
    add_rms_norm(row, rms_norm(row, weight, 1e-5), weight, 1e-5)
    silu_mul(row)
    embed(slot, row)
    # Nothing is handed out: a recorded step is one call of this.
    Program(()).replay(1)
