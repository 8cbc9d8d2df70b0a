"""Samples of one request: sequences that share the blocks of their prompt.

    lead --prompt computed--> fork --> lead, sibling, sibling: a table and a first token each

    tables    | full blocks of the prompt | its last block, partly filled |
                shared to the end           copied by whoever writes to it while others hold it
"""

from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool
from octavo.engine.sequence import Sequence, Status
from octavo.engine.step_plan import StepPlan


class Samples:
    """What a scheduler has to know of requests with several samples."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._unforked: dict[str, Sequence] = {}  # leads that hold blocks, by id
        self._tail_sharers: list[Sequence] = []  # forked since the last step was planned

    @property
    def num_promised(self) -> int:
        """Decode rows that siblings to come will take."""
        if not self._unforked:
            return 0
        return sum(lead.num_rows - 1 for lead in self._unforked.values())

    def admit(self, seq: Sequence) -> None:
        """`seq` got its blocks."""
        if seq.num_siblings:
            self._unforked[seq.seq_id] = seq

    def forget(self, seq: Sequence) -> None:
        """`seq` gave its blocks back."""
        if seq.num_siblings:
            self._unforked.pop(seq.seq_id, None)

    def plan(self, plan: StepPlan) -> None:
        """Add siblings of leads whose prompt is complete after this step."""
        if not self._unforked:
            return
        for row, seq in enumerate(plan.sampled[:]):
            if seq.num_siblings:
                plan.add_siblings(row, seq.siblings())

    def fork(self, lead: Sequence, siblings: list[Sequence]) -> None:
        """Give siblings the table of their lead, all of whose known tokens are computed."""
        self.forget(lead)
        lead.num_siblings = 0
        for sibling in siblings:
            self._pool.touch(lead.block_ids)
            sibling.add_blocks(list(lead.block_ids))
            sibling.num_registered_blocks = lead.num_registered_blocks
        if lead.num_tokens % self._block_size:
            self._tail_sharers += [lead, *siblings]

    def take_tail_sharers(self) -> list[Sequence]:
        """Sequences whose last block may be another's, too, and is about to be written."""
        sharers, self._tail_sharers = self._tail_sharers, []
        return sharers

    def shares_tail(self, seq: Sequence) -> bool:
        """Whether the next token of `seq` would be written to a block that others hold."""
        return (
            seq.status is Status.RUNNING
            and seq.num_computed_tokens < len(seq.block_ids) * self._block_size
            and self._pool.num_owners(seq.block_ids[-1]) > 1
        )

    def num_shared_empty(self) -> int:
        """Empty slots of blocks that several tables end with, but for the first of each."""
        seen: set[int] = set()
        empty = 0
        for seq in self._tail_sharers:
            if not seq.block_ids:
                continue
            if seq.block_ids[-1] in seen:
                empty += len(seq.block_ids) * self._block_size - seq.num_computed_tokens
            seen.add(seq.block_ids[-1])
        return empty

    def num_blocks_beside(self, seq: Sequence, preempted: Arrivals) -> int:
        """Free blocks that admission of `seq` must leave for its siblings.

        To siblings to come one each, as they all write after the prompt; to those that were
        preempted with it what they had beyond the prompt's full blocks.
        """
        num_shared = seq.num_prompt_tokens // self._block_size
        if seq.num_siblings:
            return 0 if seq.is_leased else seq.num_siblings * min(1, self._num_private(seq))
        return sum(
            -(-sibling.num_tokens // self._block_size) - num_shared
            for sibling in preempted.samples(seq.arrival)
            if sibling is not seq
        )

    def _num_private(self, seq: Sequence) -> int:
        num_slots = seq.num_prompt_tokens + seq.sampling.max_tokens - 1
        return -(-num_slots // self._block_size) - seq.num_prompt_tokens // self._block_size


def is_prompt_under_way(seq: Sequence, running: Arrivals) -> bool:
    """Whether a running sample of its request computes the prompt that `seq` will find cached."""
    return any(
        sample.num_computed_tokens < sample.num_prompt_tokens
        for sample in running.samples(seq.arrival)
    )
