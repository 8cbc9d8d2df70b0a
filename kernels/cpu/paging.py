"""Where the rows of paged K and V lie: from a block table to sixteen addresses at a time."""

import torch

from octavo.kernels.cpu.jit import inlined
from octavo.kernels.cpu.lanes import LANES, LINE
from octavo.kernels.cpu.memory import copy_bytes, prefetch, read_i32, read_i64, write_i64


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
        write_i64(offsets, t, block + inside * kv_strides[3])
        inside += 1
    last = read_i64(offsets, count - 1)
    for t in range(count, (count + LANES - 1) // LANES * LANES):
        write_i64(offsets, t, last)


@inlined
def begin_padded(padded, width, item_bytes):
    """Room of `take_rows`: the offsets of its rows, [16] int64, then zeros, [16, width]."""
    rows = padded + 8 * LANES
    for t in range(LANES):
        write_i64(padded, t, t * width * item_bytes)
        for i in range(0, width * item_bytes, 8):
            write_i64(rows + t * width * item_bytes + i, 0, 0)


@inlined
def take_rows(base, offsets, first, padded, row_bytes, padded_bytes):
    """(address, offsets) of the tile's rows; if padded is not 0, of their padded copies in it."""
    if padded == 0:
        return base, offsets + 8 * first
    rows = padded + 8 * LANES
    for t in range(LANES):
        copy_bytes(rows + t * padded_bytes, base + read_i64(offsets, first + t), row_bytes)
    return rows, padded


@inlined
def fetch_rows(base, offsets, first, row_bytes):
    """Ask for the rows of the tile that begins at token `first`."""
    for t in range(LANES):
        row = base + read_i64(offsets, first + t)
        for i in range(0, row_bytes, LINE):
            prefetch(row + i)


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
