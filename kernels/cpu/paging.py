"""Where the rows of paged K and V lie: from a block table to sixteen addresses at a time."""

import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES
from octavo.kernels.cpu.memory import copy_bytes, prefetch, read_i32

AHEAD = 2  # tiles of 16 rows that are fetched before their use
CACHE_LINE = 64  # bytes


@inlined
def find_rows(offsets, table, first, count, block_size, kv_strides):
    """offsets[t] = byte offset of token first + t in the pool; past `count`, the last one again."""
    index = first // block_size
    inside = first - index * block_size
    block = read_i32(table, index) * kv_strides[0]
    for t in range(count):
        if inside == block_size:
            inside = 0
            index += 1
            block = read_i32(table, index) * kv_strides[0]
        offsets[t] = block + inside * kv_strides[3]
        inside += 1
    end = (count + LANES - 1) // LANES * LANES + AHEAD * LANES
    for t in range(count, end):
        offsets[t] = offsets[count - 1]


@inlined
def take_rows(rows, base, offsets, first, padded, row_bytes):
    """rows[t] = address of row t of the tile; head_dims that are no multiple of 16 are copied."""
    for t in range(LANES):
        rows[t] = base + offsets[first + t]
    for t in range(LANES):
        later = base + offsets[first + t + AHEAD * LANES]
        for i in range(0, row_bytes, CACHE_LINE):
            prefetch(later + i)
    if padded.shape[0] > 0:
        for t in range(LANES):
            copy_bytes(padded.ctypes.data + t * padded.shape[1], rows[t], row_bytes)
            rows[t] = padded.ctypes.data + t * padded.shape[1]


@inlined
def fetch_first(kv_layer, kv_strides, table, first, length, block_size, num_kv_heads, row_bytes):
    """Fetch the rows that a sequence begins with, while another one is being worked on."""
    for position in range(first, min(first + AHEAD * LANES, length)):
        index = position // block_size
        row = kv_layer + read_i32(table, index) * kv_strides[0]
        row += (position - index * block_size) * kv_strides[3]
        for _ in range(num_kv_heads):
            for i in range(0, row_bytes, CACHE_LINE):
                prefetch(row + i)
                prefetch(row + kv_strides[1] + i)
            row += kv_strides[2]


def check_paged(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """What attention kernels assume of their tensors, since they see addresses only."""
    assert query.dtype == kv_layer.dtype, f"query {query.dtype}, KV {kv_layer.dtype}"
    assert query.stride(2) == 1 and kv_layer.stride(4) == 1, "head_dim must be contiguous"
    assert query.shape[2] == kv_layer.shape[4], f"{query.shape} and {kv_layer.shape}"
    assert query.shape[1] % kv_layer.shape[2] == 0, f"{query.shape} and {kv_layer.shape}"
    assert block_tables.dtype == seq_lens.dtype == torch.int32, "tables and lengths are int32"
    assert block_tables.stride(1) == 1 and seq_lens.is_contiguous()
