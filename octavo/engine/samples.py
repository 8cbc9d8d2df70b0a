"""Samples of one request: sequences that share the blocks of their prompt.

    lead --prompt computed--> fork --> lead, sibling, sibling: a table and a first token each

    tables    | full blocks of the prompt | its last block, partly filled |
                shared to the end           copied by whoever writes to it while others hold it

Beams are samples whose tables are dealt anew at every step: each goes on from one of them.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed

from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool
from octavo.engine.choice import Choice, ScoredToken, Token
from octavo.engine.sequence import Sequence, Status
from octavo.engine.step_plan import StepPlan


class Samples:
    """What a scheduler has to know of requests with several samples."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        sequences: dict[str, list[Sequence]],
        running: Arrivals,
    ) -> None:
        """sequences, running: the scheduler's, to which samples are added."""
        self._pool = pool
        self._block_size = block_size
        self._sequences = sequences
        self._running = running
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
            if isinstance(seq, Sequence) and seq.num_siblings and seq.beams is None:
                plan.add_siblings(row, seq.siblings())

    def fork_planned(self, plan: StepPlan, choices: Listed[Choice]) -> list[tuple[Sequence, Token]]:
        """Let the planned siblings run, before a lead can give its blocks back.

        Returns them with their first tokens.
        """
        started: list[tuple[Sequence, Token]] = []
        of_siblings = choices[plan.num_sampled_rows :]
        for sibling, row, choice in zip(plan.siblings, plan.sibling_rows, of_siblings, strict=True):
            lead = plan.sampled[row]
            # Without valid logits the lead has no token either, and ends all.
            if isinstance(lead, Sequence) and isinstance(choice, int | ScoredToken):
                self.fork(lead, [sibling])
                started.append((sibling, choice))
        return started

    def fork(self, lead: Sequence, siblings: list[Sequence]) -> list[Sequence]:
        """Let siblings run with the table of their lead, all of whose known tokens are computed.

        Returns all of them, the lead first.
        """
        self.forget(lead)
        lead.num_siblings = 0
        # Not the block that a pulled sequence holds for its first token.
        shared = lead.block_ids[: -(-lead.num_tokens // self._block_size)]
        for sibling in siblings:
            self._pool.touch(shared)
            sibling.add_blocks(list(shared))
            sibling.num_registered_blocks = lead.num_registered_blocks
            self._running.add(sibling)
        self._sequences[lead.seq_id] += siblings
        if siblings and lead.num_tokens % self._block_size:
            new = siblings if lead in self._tail_sharers else [lead, *siblings]
            self._tail_sharers += new
        return [lead, *siblings]

    def copy_shared_tails(
        self,
        take_block: Callable[[Sequence], list[int]],
        copy_block: Callable[[int, int], None],
    ) -> None:
        """Give sequences that forked a last block of their own, which they are about to write.

        take_block: a block for a sequence; none if it had to give up those it has.
        """
        if not self._tail_sharers:
            return
        sharers, self._tail_sharers = self._tail_sharers, []
        for seq in sharers:
            if not self._shares_tail(seq):
                continue
            for block_id in take_block(seq):
                shared = seq.block_ids[-1]
                copy_block(shared, block_id)
                seq.replace_block(len(seq.block_ids) - 1, block_id)
                self._pool.free([shared])

    def _shares_tail(self, seq: Sequence) -> bool:
        return (
            seq.status is Status.RUNNING
            and seq.num_computed_tokens < len(seq.block_ids) * self._block_size
            and self._pool.num_owners(seq.block_ids[-1]) > 1
        )

    def move(self, beams: list[Sequence], moves: list[tuple[int, int]]) -> None:
        """Let each beam go on from the beam and with the token that its move names."""
        num_written = -(-beams[0].num_computed_tokens // self._block_size)
        before = [
            (
                beam.token_ids,
                beam.block_keys,
                beam.num_registered_blocks,
                beam.block_ids[:num_written],
            )
            for beam in beams
        ]
        for parent, _ in moves:
            self._pool.touch(before[parent][3])
        for beam in beams:
            self._pool.free(beam.take_blocks())
        for beam, (parent, token_id) in zip(beams, moves, strict=True):
            token_ids, block_keys, num_registered, block_ids = before[parent]
            beam.follow(token_ids, block_keys, token_id)
            beam.add_blocks(list(block_ids))
            beam.num_registered_blocks = num_registered
        if beams[0].num_computed_tokens % self._block_size:
            self._tail_sharers = [seq for seq in self._tail_sharers if seq not in beams] + beams

    def restart_search(self, beams: list[Sequence]) -> list[Sequence]:
        """Give up all beams but the first, which begins anew: they said nothing yet."""
        lead, *others = beams
        for beam in others:
            self._pool.free(beam.take_blocks())
            beam.status = Status.PREEMPTED
            self._sequences[beam.seq_id].remove(beam)
        lead.restart()
        return [lead]

    def hold_back_beams(self, plan: StepPlan) -> int:
        """Take out beams of a search that does not fit the step whole; returns how many."""
        last = plan.decodes[-1].beams if plan.decodes else None
        if last is None:
            return 0
        planned = sum(seq.beams is last for seq in plan.decodes)
        if planned == sum(seq.beams is last for seq in self._running):
            return 0
        del plan.decodes[-planned:]
        return planned

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

    def is_prompt_under_way(self, seq: Sequence) -> bool:
        """Whether a sample of its request computes the prompt, which `seq` will find cached."""
        return any(
            sample.num_computed_tokens < sample.num_prompt_tokens
            for sample in self._running.samples(seq.arrival)
        )
