"""Which rows of a decode batch are grouped, compared with a slow search and with the promises."""

import random

import numpy as np
import numpy.typing as npt
import pytest
import torch

from octavo.engine.shared_prefixes import (
    Group,
    GroupPolicy,
    find_groups,
    pack_groups,
    policy_for,
)

BLOCK = 16
EVERY = GroupPolicy(max_levels=99)
Tables = npt.NDArray[np.int32]


def batch(*rows: list[int]) -> tuple[Tables, npt.NDArray[np.int64]]:
    """Tables whose last block holds one token, the newest."""
    tables = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row)] = row
    return tables, np.array([(len(row) - 1) * BLOCK + 1 for row in rows])


def find(rows: list[list[int]], policy: GroupPolicy = EVERY) -> list[Group]:
    return find_groups(*batch(*rows), BLOCK, policy)


def test_nested_prefixes_become_groups_outer_first() -> None:
    rows = [[7, 2, 9, 4, 5, 1, 30], [33], [7, 2, 9, 4, 5, 1, 31], [7, 2, 9, 4, 32]]
    groups = find(rows)
    assert groups == [Group([0, 2, 3], 0, 4, 0), Group([0, 2], 4, 6, 1)]
    packed = pack_groups(groups, 4, BLOCK, torch.device("cpu"))
    assert packed.members.tolist() == [0, 2, 3, 0, 2]
    assert packed.group_start.tolist() == [0, 3, 5]
    assert packed.blocks.tolist() == [[0, 4], [4, 6]]
    assert packed.levels.tolist() == [0, 1]
    assert packed.shared_lens.tolist() == [96, 0, 96, 64]
    assert (packed.num_levels, packed.max_members, packed.max_blocks) == (2, 3, 4)


def test_several_groups_of_one_batch_stand_side_by_side() -> None:
    groups = find([[1, 2, 3], [4, 5, 6], [1, 2, 7], [4, 8], [9]])
    assert groups == [Group([0, 2], 0, 2, 0), Group([1, 3], 0, 1, 0)]


def test_the_block_of_the_newest_token_is_never_shared() -> None:
    tables, _ = batch([1, 2], [1, 2])
    (group,) = find_groups(tables, np.array([32, 31]), BLOCK, EVERY)
    assert (group.first, group.end) == (0, 1)
    assert find_groups(tables[:, :1], np.array([16, 1]), BLOCK, EVERY) == []


def test_a_branch_too_small_for_a_group_leaves_its_blocks_to_those_below() -> None:
    rows = [[1, 2, 3, 4, 30], [1, 2, 3, 4, 31], [1, 5, 6, 7, 32], [1, 5, 6, 7, 33]]
    policy = GroupPolicy(fixed=7 * BLOCK)
    assert find(rows, policy) == [Group([0, 1], 0, 4, 0), Group([2, 3], 0, 4, 0)]


def test_levels_stay_within_their_bound() -> None:
    rows = [[*range(1, n), 100 + n] for n in range(2, 12)]
    policy = GroupPolicy(max_levels=3)
    assert max(group.level for group in find(rows, policy)) == 2


def test_few_rows_and_unlike_rows_have_no_groups() -> None:
    assert find([[1, 2, 3]]) == find([[1, 2], [3, 4]]) == []
    assert find_groups(np.zeros((0, 4), np.int32), np.zeros(0, np.int64), BLOCK, EVERY) == []


@pytest.mark.parametrize("seed", range(40))
def test_groups_of_random_tables_cover_what_is_shared_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    rows = [[rng.randrange(1, 3) for _ in range(rng.randrange(1, 9))] for _ in range(12)]
    tables, seq_lens = batch(*rows)
    covered = dict.fromkeys(range(len(rows)), 0)
    for group in find_groups(tables, seq_lens, BLOCK, EVERY):
        assert len(group.members) > 1
        for row in group.members:
            assert covered[row] == group.first < group.end < len(rows[row])
            assert rows[row][: group.end] == rows[group.members[0]][: group.end]
            covered[row] = group.end
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        longest = max(
            n
            for n in range(len(row))
            if n == 0 or any(len(o) > n and o[:n] == row[:n] for o in others)
        )
        assert covered[i] == longest


def test_float32_on_a_cpu_never_groups() -> None:
    policy = policy_for(torch.device("cpu"), torch.float32, heads_per_row=3)
    assert not policy.pays(num_members=256, num_tokens=100_000)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.bfloat16), ("cpu", torch.float16), ("cuda", torch.float32)],
)
def test_a_document_for_many_is_grouped_and_a_greeting_for_two_is_not(
    device: str, dtype: torch.dtype
) -> None:
    policy = policy_for(torch.device(device), dtype, heads_per_row=3)
    assert policy.pays(num_members=32, num_tokens=1024)
    assert not policy.pays(num_members=2, num_tokens=32)
    assert not policy.pays(num_members=1, num_tokens=100_000)
