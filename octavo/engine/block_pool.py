"""Hands out the fixed-size blocks of the paged KV cache and counts their owners.

    free --allocate--> held --free, unnamed--> free
                        |  ^
            free, named |  | touch
                        v  |
                      cached (LRU) --allocate, oldest first--> held

A block is *named* while the prefix cache can find it. Every operation is O(1) per block.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from dataclasses import dataclass


class OutOfBlocks(Exception):
    """The pool cannot serve an allocation; the caller should wait or preempt."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """free + cached + held = total."""

    total: int
    free: int  # hold nothing that can be found
    cached: int  # held by nobody, still findable
    held: int


class BlockPool:
    """Owns block ids and their reference counts; the tensors live in KVCache."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_total = num_blocks
        self.num_cached = 0
        self.num_used = 0  # blocks below this one were allocated at some time, those above never
        # Told which block lost its name when an allocation takes a cached one.
        self.on_evict: Callable[[int], None] = _ignore
        self._free_ids = list(range(num_blocks - 1, -1, -1))  # a stack: low ids are used first
        self._ref_counts = [0] * num_blocks
        self._is_named = bytearray(num_blocks)
        # Intrusive circular list of cached blocks, oldest first; index num_blocks is its anchor.
        self._older = [num_blocks] * (num_blocks + 1)
        self._newer = [num_blocks] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: free ones and cached ones."""
        return len(self._free_ids) + self.num_cached

    @property
    def num_held(self) -> int:
        return self.num_total - self.num_free

    @property
    def counts(self) -> BlockCounts:
        return BlockCounts(self.num_total, len(self._free_ids), self.num_cached, self.num_held)

    def num_owners(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def count_idle(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds: touching them takes that many from num_free."""
        ref_counts = self._ref_counts
        return sum(ref_counts[block_id] == 0 for block_id in block_ids)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take all of num_blocks or none, each with one owner.

        Raises:
            OutOfBlocks: fewer are free.
        """
        if num_blocks > self.num_free:
            raise OutOfBlocks(
                f"need {num_blocks} blocks, {self.num_free} of {self.num_total} are free"
            )
        block_ids = [
            self._free_ids.pop() if self._free_ids else self._evict() for _ in range(num_blocks)
        ]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        self.num_used = max(self.num_used, max(block_ids, default=-1) + 1)
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add an owner to each block; all must be held or cached."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                if not self._is_named[block_id]:
                    raise ValueError(f"block {block_id} is free: nobody can share it")
                self._unlink(block_id)
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Ids[int]) -> None:
        """Drop an owner of each block of a table, last block first.

        The tail of a chain is thus older than its head and is evicted before it: a chain whose
        head is gone could never be found again.
        """
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] == 0:
                raise ValueError(f"block {block_id} is freed twice")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] > 0:
                continue
            if self._is_named[block_id]:
                self._link_newest(block_id)
            else:
                self._free_ids.append(block_id)

    def name(self, block_id: int) -> None:
        """The prefix cache can find this held block from now on."""
        self._is_named[block_id] = True

    def unname(self, block_id: int) -> None:
        """The prefix cache forgot this block."""
        self._is_named[block_id] = False
        if self._ref_counts[block_id] == 0:
            self._unlink(block_id)
            self._free_ids.append(block_id)

    def _evict(self) -> int:
        block_id = self._newer[self.num_total]
        self._unlink(block_id)
        self._is_named[block_id] = False
        self.on_evict(block_id)
        return block_id

    def _link_newest(self, block_id: int) -> None:
        anchor = self.num_total
        newest = self._older[anchor]
        self._newer[newest] = self._older[anchor] = block_id
        self._older[block_id], self._newer[block_id] = newest, anchor
        self.num_cached += 1

    def _unlink(self, block_id: int) -> None:
        older, newer = self._older[block_id], self._newer[block_id]
        self._newer[older], self._older[newer] = newer, older
        self.num_cached -= 1


def _ignore(block_id: int) -> None:
    pass
