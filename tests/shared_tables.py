"""Paged KV of sequences that begin with the same blocks, for the kernels' tests.

make_shared([("ab", 5), ("ab", 40), ("a", 1), ("", 9)], {"a": 3, "b": 2}, ...)
    four sequences: two begin with the blocks of a, then b, one with a's alone; each goes on with
    so many tokens of its own
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.engine.shared_prefixes import GroupPolicy, find_groups, pack_groups
from octavo.kernels.prefix_groups import PrefixGroups

EVERY = GroupPolicy(max_levels=99)


@dataclass(frozen=True, slots=True)
class SharedKV:
    """One layer's view of a pool in which every slot that holds no token is NaN."""

    kv_layer: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    groups: PrefixGroups


def make_shared(
    rows: Sequence[tuple[str, int]],
    parts: dict[str, int],
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> SharedKV:
    """parts: how many blocks each shared part has."""
    device = device or torch.device("cpu")
    num_own = [-(-own // block_size) for _, own in rows]
    num_blocks = sum(parts.values()) + sum(num_own) + 2
    shape = (num_blocks, 3, 2, num_kv_heads, block_size, head_dim)
    kv_layer = torch.full(shape, float("nan"), dtype=dtype)[:, 1]
    spare = (torch.randperm(num_blocks - 1) + 1).tolist()  # block 0 pads the tables

    def fill(num_tokens: int) -> list[int]:
        blocks = [spare.pop() for _ in range(-(-num_tokens // block_size))]
        for i, block in enumerate(blocks):
            used = min(block_size, num_tokens - i * block_size)
            kv_layer[block, :, :, :used] = torch.randn(2, num_kv_heads, used, head_dim).to(dtype)
        return blocks

    shared = {name: fill(count * block_size) for name, count in parts.items()}
    tables = [
        [block for name in names for block in shared[name]] + fill(own) for names, own in rows
    ]
    seq_lens = [sum(parts[name] for name in names) * block_size + own for names, own in rows]
    padded = torch.zeros(len(rows), max(map(len, tables)) + 1, dtype=torch.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = torch.tensor(table)
    lengths = torch.tensor(seq_lens)
    groups = find_groups(padded.numpy(), lengths.numpy(), block_size, EVERY)
    return SharedKV(
        kv_layer.to(device),
        padded.to(device),
        lengths.int().to(device),
        pack_groups(groups, len(rows), block_size, device),
    )
