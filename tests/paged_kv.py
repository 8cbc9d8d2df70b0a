"""Sequences in a paged pool whose unused slots hold NaN, and queries for attention over them."""

from dataclasses import dataclass

import torch


@dataclass
class Paged:
    """Sequences of random length in a pool of 3 layers; slots that hold no token are NaN."""

    kv_layer: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor


def paged(lengths: list[int], num_kv_heads: int, block_size: int, like: torch.Tensor) -> Paged:
    counts = [-(-n // block_size) for n in lengths]
    kv = like.new_full(
        (sum(counts) + 2, 3, 2, num_kv_heads, block_size, like.shape[-1]), float("nan")
    )
    free = torch.randperm(len(kv)).tolist()
    tables = torch.zeros(len(lengths), max(counts) + 1, dtype=torch.int32)
    for table, length, count in zip(tables, lengths, counts, strict=True):
        for i in range(count):
            table[i] = block = free.pop()
            used = min(block_size, length - i * block_size)
            kv[block, :, :, :, :used] = torch.randn(kv[block, :, :, :, :used].shape).to(kv.dtype)
    return Paged(kv[:, 1], tables, torch.tensor(lengths, dtype=torch.int32))


def queries(num_rows: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """A strided view, as a slice of a fused q-k-v projection is."""
    return torch.randn(num_rows, num_heads + 2, head_dim).to(dtype)[:, :num_heads]
