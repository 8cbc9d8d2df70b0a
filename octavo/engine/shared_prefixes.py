"""Finds the decode rows of a step whose tables begin with the same blocks, and which are worth it.

    tables, as a tree of equal columns         groups (kernels/prefix_groups.py)
      [7 2 9 4]--[5 1]--30                       rows 0 1 2 over 4 blocks
           |        \\---31            ----->     rows 0 1 over the next 2
           \\-----32                             rows that share too little stay ungrouped
      [33]

A branch that is not worth a group of its own leaves its blocks to those below it.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.prefix_groups import PrefixGroups

Tables = npt.NDArray[np.int32]  # [S, max_blocks]


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """When one pass for several rows costs less than a pass for each.

    Costs are in units of what the plain kernel spends on one cached token for one query head. A
    group of r heads per KV head over t tokens costs fixed + per_head * r + t * (per_token +
    per_vector * ceil(r / 16)), for CPU vectors of 16 heads; plain costs t * r.
    """

    heads_per_row: int = 1  # query heads that share a KV head
    fixed: float = 0.0
    per_head: float = 0.0
    per_token: float = 0.0
    per_vector: float = 0.0
    max_levels: int = 4

    def pays(self, num_members: int, num_tokens: int) -> bool:
        heads = num_members * self.heads_per_row
        per_token = self.per_token + self.per_vector * -(-heads // 16)
        grouped = self.fixed + self.per_head * heads + num_tokens * per_token
        return num_members > 1 and num_tokens * heads > grouped


def policy_for(device: torch.device, dtype: torch.dtype, heads_per_row: int) -> GroupPolicy:
    """CPU: what `bench/shared_prefix.py` measured on one core, rounded up: of Emerald Rapids for
    matrix tiles, of Zen 5 for AVX-512, of Zen 3 for integers and for narrower vectors. GPU: an
    estimate, that two more launches cost as much as 10,000 reads of one token and KV head.

    float32 on a CPU never groups: its tokens depend on the request alone, and a group adds the same
    numbers in another order.
    """
    if device.type == "cuda":
        reads = float(heads_per_row)
        return GroupPolicy(heads_per_row, fixed=10_000 * reads, per_token=reads)
    from octavo.kernels.cpu.amx import HAS_AMX_BF16
    from octavo.kernels.cpu.integer_dot import HAS_INTEGERS
    from octavo.kernels.cpu.lanes import LANES
    from octavo.kernels.cpu.pair_dot import HAS_PAIRS
    from octavo.kernels.cpu.registers import WIDTH

    if HAS_AMX_BF16 and dtype == torch.bfloat16:
        return GroupPolicy(heads_per_row, fixed=1200, per_head=15, per_token=6, per_vector=2)
    if HAS_PAIRS and dtype == torch.bfloat16:
        return GroupPolicy(heads_per_row, fixed=800, per_head=50, per_token=8, per_vector=4)
    if dtype == torch.float32:
        return GroupPolicy(heads_per_row, fixed=float("inf"))
    if HAS_INTEGERS:
        return GroupPolicy(heads_per_row, fixed=1600, per_head=50, per_token=12, per_vector=6.5)
    if WIDTH < LANES:
        return GroupPolicy(heads_per_row, fixed=1600, per_head=50, per_token=4, per_vector=8)
    return GroupPolicy(heads_per_row, fixed=800, per_head=50, per_token=14, per_vector=6.5)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch that share the blocks first .. end - 1 of their tables."""

    members: list[int]
    first: int
    end: int
    level: int


def find_groups(
    tables: Tables, seq_lens: npt.NDArray[np.int32], block_size: int, policy: GroupPolicy
) -> list[Group]:
    """Groups by level, so outer before inner.

    tables: [S, max_blocks]; seq_lens: [S], the newest token included, whose block is never shared.
    """
    if math.isinf(policy.fixed) or len(set(tables[:, 0].tolist())) == len(tables):
        return []  # no group pays, or no two rows begin with one block
    num_full = ((seq_lens - 1) // block_size).tolist()
    found: list[Group] = []
    # (rows that agree in all columns before `column`, first column not in a group, column, level)
    branches = [(list(range(len(num_full))), 0, 0, 0)]
    while branches:
        rows, first, column, level = branches.pop(0)
        for members in _split(rows, tables, num_full, column):
            end = _common_end(members, tables, num_full, column)
            inner = (members, first, end, level)
            if end > first and policy.pays(len(members), (end - first) * block_size):
                found.append(Group(*inner))
                inner = (members, end, end, level + 1)
            if inner[3] < policy.max_levels:
                branches.append(inner)
    return sorted(found, key=lambda group: group.level)


def _split(rows: list[int], tables: Tables, num_full: list[int], column: int) -> list[list[int]]:
    """The rows by their block in a column, without those that end or stand alone there."""
    by_block: dict[int, list[int]] = {}
    rows = [row for row in rows if num_full[row] > column]
    if len(rows) < 2:
        return []
    for row, block in zip(rows, tables[rows, column].tolist(), strict=True):
        by_block.setdefault(block, []).append(row)
    return [members for members in by_block.values() if len(members) > 1]


def _common_end(members: list[int], tables: Tables, num_full: list[int], column: int) -> int:
    """One past the last column, from `column` on, in which all members have one block."""
    shortest = min(num_full[row] for row in members)
    span = tables[members, column:shortest]
    differs = (span != span[0]).any(axis=0)
    return column + (int(differs.argmax()) if differs.any() else shortest - column)


def pack_groups(
    groups: list[Group], num_seqs: int, block_size: int, device: torch.device
) -> PrefixGroups:
    """The groups as a kernel reads them."""
    sizes = [len(group.members) for group in groups]
    shared_lens = np.zeros(num_seqs, dtype=np.int32)
    for group in groups:  # an inner one comes later and ends later
        shared_lens[group.members] = group.end * block_size

    def tensor(values: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(device)

    return PrefixGroups(
        members=tensor([row for group in groups for row in group.members]),
        group_start=tensor(np.cumsum([0, *sizes])),
        blocks=tensor([(group.first, group.end) for group in groups]),
        levels=tensor([group.level for group in groups]),
        shared_lens=tensor(shared_lens),
        num_levels=1 + max(group.level for group in groups),
        max_members=max(sizes),
        max_blocks=max(group.end - group.first for group in groups),
    )
