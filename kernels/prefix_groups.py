"""Which sequences of a decode batch begin with the same blocks, as the kernels read it.

    sequence 0   [ 7 2 9 4 | 5 1 | 30 ]      group 0: members 0 1 2, blocks 0 .. 4, level 0
    sequence 1   [ 7 2 9 4 | 5 1 | 31 ]      group 1: members 0 1,   blocks 4 .. 6, level 1
    sequence 2   [ 7 2 9 4 | 32 ]            shared_lens 96, 96, 64, 0  (blocks of 16 tokens)
    sequence 3   [ 33 ]

Groups that share members nest: those of one sequence cover its first shared_lens tokens without
gap or overlap, in the order of their levels, and lower levels come first in the list. What they
cover is never a sequence's last token.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """G groups over S sequences; M is the sum of their sizes."""

    members: torch.Tensor  # [M] int32, numbers of sequences, one group's after another's
    group_start: torch.Tensor  # [G + 1] int32, where each group's members begin
    blocks: torch.Tensor  # [G, 2] int32, first entry of the members' tables and one past the last
    levels: torch.Tensor  # [G] int32, how many groups of the same members come before
    shared_lens: torch.Tensor  # [S] int32, tokens that a sequence's groups cover
    num_levels: int
    max_members: int  # of any group
    max_blocks: int  # of any group
