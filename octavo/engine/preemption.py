"""Stops sequences when the pool is exhausted, and brings them back, the oldest first.

    running --latest arrival--> cost? --swap-------> blocks copied to the host --+--> stopped
                                      \\-recompute--> blocks given up ------------+
    stopped --oldest, once there is room--> cached blocks, then host copies, then computed again

With a full host pool a victim is recomputed. What resumes takes what the prefix cache still holds
before its own copies: these are equal, and so shared again.
"""

from octavo.engine.admission import Admission
from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool, OutOfBlocks
from octavo.engine.load import Counters
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.samples import Samples
from octavo.engine.sequence import Sequence, Status
from octavo.engine.step_plan import StepPlan
from octavo.engine.swap_space import SwapSpace


def choose_victims(running: Arrivals) -> list[Sequence]:
    """The latest arrival of `running`: one sequence, or all samples of a request.

    Samples go together: those left would hold the blocks that they share.

    Leased sequences are passed over: somebody may be reading their blocks, and they got every
    block they will ever need at admission. The caller is never leased, so one is always found.
    """
    latest = next(seq for seq in reversed(running) if not seq.is_leased)
    return running.samples(latest.arrival)


class Preemption:
    """Owns the stopped sequences.

    Args:
        totals: preemptions and swapped blocks are counted there.
        swap: without it every victim is recomputed.
    """

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        admission: Admission,
        totals: Counters,
        swap: SwapSpace | None,
    ) -> None:
        self.stopped = Arrivals()
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._admission = admission
        self._totals = totals
        self._swap = swap

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens of the stopped whose KV is to be computed, but for what is cached."""
        return sum(seq.num_tokens - self._num_saved(seq) for seq in self.stopped)

    def stop(self, victims: list[Sequence]) -> None:
        """Take the blocks of sequences that run no more, of all in the same way."""
        is_swapped = self._save(victims)
        for seq in victims:
            self._pool.free(seq.take_blocks())
            seq.num_computed_tokens = 0
            seq.num_preemptions += 1
            seq.status = Status.PREEMPTED
            self.stopped.add(seq)
        if is_swapped:
            self._totals.preemptions_swap += len(victims)
        else:
            self._totals.preemptions_recompute += len(victims)

    def resume(self, samples: Samples, num_active: int, max_num_seqs: int) -> list[Sequence]:
        """Give the oldest its blocks back, and those saved with it; none of them if not all fit."""
        seq = self.stopped[0]
        saved = self._swap.find(seq) if self._swap is not None else None
        group = [seq] if saved is None else list(saved.group)
        if num_active + sum(each.num_rows for each in group) > max_num_seqs:
            return []
        if saved is not None:
            return self._restore(group, num_active)
        if samples.is_prompt_under_way(seq):
            return []
        num_beside = samples.num_blocks_beside(seq, self.stopped)
        if not self._admission.try_admit(seq, num_active, num_beside):
            return []
        self.stopped.remove(seq)
        return group

    def release(self, seq: Sequence) -> None:
        """Forget a stopped sequence and its host copies."""
        self.stopped.remove(seq)
        if self._swap is not None:
            self._swap.drop(seq)

    def observe(self, plan: StepPlan) -> None:
        """Learn from a step that was executed what computing costs."""
        if self._swap is not None and self._swap.cost is not None and plan.num_seqs > 0:
            self._swap.cost.add_step(plan)

    def _num_saved(self, seq: Sequence) -> int:
        saved = self._swap.find(seq) if self._swap is not None else None
        return 0 if saved is None else saved.num_tokens

    def _save(self, victims: list[Sequence]) -> bool:
        swap = self._swap
        if swap is None or not any(seq.num_computed_tokens for seq in victims):
            return False
        if swap.cost is not None and not swap.cost.favours_swap(victims, self._pool):
            return False
        try:
            self._totals.blocks_swapped_out += swap.save(victims)
        except OutOfBlocks:
            return False
        return True

    def _restore(self, group: list[Sequence], num_active: int) -> list[Sequence]:
        swap = self._swap
        assert swap is not None
        saved = [one for seq in group if (one := swap.find(seq)) is not None]
        copies = self._admission.try_restore(group, [one.host_ids for one in saved], num_active)
        if copies is None:
            return []
        swap.load(copies)
        self._totals.blocks_swapped_in += len(copies)
        for seq, one in zip(group, saved, strict=True):
            seq.num_computed_tokens = max(seq.num_computed_tokens, one.num_tokens)
            # Complete, so they may be found; an equal block that came meanwhile takes their place.
            self._prefix_cache.settle(seq, 0)
            self.release(seq)
        return group
