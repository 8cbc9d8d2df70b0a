"""Gives a sequence its blocks, all or nothing, cached ones first.

    | cached prefix (shared) | allocated: rest of the known tokens | + slot of a first token |
                                                                     if it comes from a pull

One block per active sequence is left free, so that a newcomer does not preempt at once.
"""

import time
from collections.abc import Sequence as Ids
from itertools import chain

from octavo.engine.block_pool import BlockPool
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.sequence import Sequence, Status


class Admission:
    """Decides whether a sequence fits and takes its blocks."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache, block_size: int) -> None:
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._block_size = block_size

    def try_admit(self, seq: Sequence, num_active: int, num_beside: int = 0) -> bool:
        """Fill the block table of a waiting or preempted sequence if it fits.

        num_beside: free blocks that must be left for its siblings.
        """
        num_blocks = self._num_blocks(seq)
        most_cached = self._max_cached_blocks(seq)
        room = self._pool.num_free - num_active - num_beside
        if num_blocks - most_cached > room:
            return False  # not even if every block it may share is held by others
        cached = self.match(seq)
        num_new = num_blocks - len(cached)
        if num_new + self._pool.count_idle(cached) > room:
            return False
        self._pool.touch(cached)
        seq.add_blocks(cached + self._pool.allocate(num_new))
        seq.num_registered_blocks = len(cached)
        seq.num_computed_tokens = len(cached) * self._block_size
        if seq.status is Status.WAITING:
            seq.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)
            seq.admitted_at = time.monotonic()
        return True

    def try_restore(
        self, seqs: Ids[Sequence], host_tables: Ids[list[int]], num_active: int
    ) -> dict[int, int] | None:
        """Fill the tables of preempted sequences whose KV waits in host memory: all or none.

        Cached blocks are shared as ever, blocks that a host copy belongs in once, as they were.

        Returns:
            {host block: the block its copy belongs in}, or None if they do not fit.
        """
        cached = [self.match(seq) for seq in seqs]
        num_fresh = [
            self._num_blocks(seq) - max(len(found), len(table))
            for seq, found, table in zip(seqs, cached, host_tables, strict=True)
        ]
        tails = [table[len(f) :] for f, table in zip(cached, host_tables, strict=True)]
        wanted = list(dict.fromkeys(chain.from_iterable(tails)))
        num_new = len(wanted) + sum(num_fresh)
        num_idle = self._pool.count_idle(set(chain.from_iterable(cached)))
        if num_new + num_idle > self._pool.num_free - num_active:
            return None
        for found in cached:
            self._pool.touch(found)
        fresh = self._pool.allocate(num_new)
        copies = {host_id: fresh.pop() for host_id in wanted}
        claimed: set[int] = set()
        for seq, found, tail, count in zip(seqs, cached, tails, num_fresh, strict=True):
            restored = [copies[host_id] for host_id in tail]
            self._pool.touch(block_id for block_id in restored if block_id in claimed)
            claimed.update(restored)
            seq.add_blocks(found + restored + [fresh.pop() for _ in range(count)])
            seq.num_registered_blocks = len(found)
            seq.num_computed_tokens = len(found) * self._block_size
        return copies

    def match(self, seq: Sequence) -> list[int]:
        """Cached blocks that admission would share now; takes none."""
        return self._prefix_cache.match(
            seq.group_key,
            seq.root_key,
            seq.token_ids,
            self._max_cached_blocks(seq),
            seq.block_keys,
        )

    def _max_cached_blocks(self, seq: Sequence) -> int:
        """A sequence that needs logits computes its last known token itself, and every prompt token
        behind which it needs them."""
        num_tokens = seq.num_tokens if _is_to_fill(seq) else seq.num_tokens - 1
        if seq.num_unscored_rows > 0:
            num_tokens = seq.num_scored_rows
        return num_tokens // self._block_size

    def _num_blocks(self, seq: Sequence) -> int:
        num_slots = seq.num_tokens
        if seq.is_leased:
            # To its last token: its table is read from outside, so it must never be preempted.
            num_slots = seq.num_prompt_tokens + seq.sampling.max_tokens - 1
        elif _is_to_fill(seq):
            num_slots += 1
        return -(-num_slots // self._block_size)


def _is_to_fill(seq: Sequence) -> bool:
    """Once preempted, a pulled sequence computes its KV like any other."""
    return seq.is_pulled and seq.status is Status.WAITING
