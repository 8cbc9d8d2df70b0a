"""Rows of the embedding: where a step begins."""

import numpy as np
import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import copy_bytes, read_i64, unpacked
from octavo.kernels.cpu.recording import empty
from octavo.kernels.cpu.team import kernel_per_format, run
from octavo.kernels.cpu.vector import splat, store, store_some

CHUNK = 65536  # elements that are taken at once, some 20 us
NAN = np.float32(np.nan)


@inlined
def _spoil_row(format, out, size):
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        store(format, out, i, splat(NAN))
    if whole < size:
        store_some(format, out, whole, size - whole, splat(NAN))


@kernel_per_format
def _embed(format):
    def embed(args, first, last):
        """weight: [num_rows, size]; token_ids: [T] int64; out: [T, size]; all contiguous."""
        weight, num_rows, token_ids, out, size, item = unpacked(args, 6)
        for t in range(first, last):
            token_id, target = read_i64(token_ids, t), out + t * size * item
            if token_id < 0 or token_id >= num_rows:
                _spoil_row(format, target, size)
            else:
                copy_bytes(target, weight + token_id * size * item, size * item)

    return embed


def embed(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `reference.embed`; a token that has no row gets NaN."""
    assert token_ids.dtype == torch.int64 and token_ids.is_contiguous() and weight.is_contiguous()
    num_rows, size = weight.shape
    out = empty((len(token_ids), size), weight.dtype)
    item = weight.element_size()
    args = (weight.data_ptr(), num_rows, token_ids.data_ptr(), out.data_ptr(), size, item)
    run(_embed(weight.dtype), args, len(token_ids), CHUNK // size + 1)
    return out
