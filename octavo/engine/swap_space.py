"""Where preempted sequences' KV waits: host blocks with owners of their own, as the pool's.

    tables of a group   a: 7 3 9        host pool     a: 0 1 2
                        b: 7 3 4   -->                b: 0 1 3      shared blocks once

Sequences that are saved together come back together.
"""

import time
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from octavo.engine.block_pool import BlockPool
from octavo.engine.preemption_cost import PreemptionCost
from octavo.engine.sequence import Sequence


class BlockStore(Protocol):
    """Copies blocks between the pool and the host; a copy has ended when the call returns."""

    def save(self, block_ids: Ids[int], host_ids: Ids[int]) -> None: ...

    def load(self, host_ids: Ids[int], block_ids: Ids[int]) -> None: ...


@dataclass(slots=True)
class Saved:
    """What one sequence has in host memory."""

    host_ids: list[int]  # of its first blocks, in order
    num_tokens: int  # whose KV they hold
    group: list[Sequence]  # all that were saved with it and not dropped since


class SwapSpace:
    """Host copies of preempted sequences.

    Args:
        cost: decides between swap and recompute; without it whatever has room is swapped.
    """

    def __init__(
        self, store: BlockStore, num_blocks: int, block_size: int, cost: PreemptionCost | None
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.cost = cost
        self._store = store
        self._block_size = block_size
        self._saved: dict[Sequence, Saved] = {}

    def find(self, seq: Sequence) -> Saved | None:
        return self._saved.get(seq)

    def save(self, seqs: Ids[Sequence]) -> int:
        """Copy out the computed blocks of all of them, each full block once; returns how many.

        Raises:
            OutOfBlocks: there is no room; nothing was copied.
        """
        tables = [self._places(seq) for seq in seqs]
        places = list(dict.fromkeys(chain.from_iterable(tables)))
        host_ids = self.pool.allocate(len(places))
        began = time.perf_counter()
        self._store.save([block_id for block_id, _ in places], host_ids)
        self._note(len(places), began)
        host_of = dict(zip(places, host_ids, strict=True))
        group = list(seqs)
        for seq, table in zip(seqs, tables, strict=True):
            saved = Saved([host_of[place] for place in table], seq.num_computed_tokens, group)
            self.pool.touch(saved.host_ids)
            self._saved[seq] = saved
        self.pool.free(host_ids)  # each has its owners now
        return len(places)

    def load(self, copies: dict[int, int]) -> None:
        """Copy host blocks into the blocks that they are mapped to."""
        began = time.perf_counter()
        self._store.load(list(copies), list(copies.values()))
        self._note(len(copies), began)

    def drop(self, seq: Sequence) -> None:
        """Give a sequence's host blocks back; no-op if it has none."""
        saved = self._saved.pop(seq, None)
        if saved is not None:
            saved.group.remove(seq)
            self.pool.free(saved.host_ids)

    def _places(self, seq: Sequence) -> list[tuple[int, Sequence | None]]:
        """Its computed blocks, each with its owner if it will be written again, else None."""
        places: list[tuple[int, Sequence | None]]
        places = [(block_id, None) for block_id in seq.computed_blocks(self._block_size)]
        if seq.num_computed_tokens % self._block_size:
            places[-1] = (places[-1][0], seq)
        return places

    def _note(self, num_blocks: int, began: float) -> None:
        if self.cost is not None:
            self.cost.block_copy.add(num_blocks, time.perf_counter() - began)
