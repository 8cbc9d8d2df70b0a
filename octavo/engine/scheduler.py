"""Decides what each step computes. Where each sequence stands, Roster knows; what comes of it,
Booking.

    add --> waiting --admit--> running --schedule--> StepPlan --execute--> commit --> outputs
                 \\--admit--> filling --join--^  |
                     preempted <--out of blocks--+     release, at any point, gives all back

There is no prefill or decode phase: a sequence has known tokens and computed tokens, and a step
computes some of the difference. One token behind is a decode row, more is a chunk; what a step has
room for besides are drafts, rows of tokens that are only guessed (draft_row.py).
"""

from collections.abc import Callable, Set
from collections.abc import Sequence as Listed

from octavo.block_key import BlockKey, root_key
from octavo.engine.admission import Admission
from octavo.engine.beam_state import BeamCandidates
from octavo.engine.block_pool import BlockPool, OutOfBlocks
from octavo.engine.booking import Booking
from octavo.engine.choice import Choice, Token
from octavo.engine.draft_planner import DraftPlanner
from octavo.engine.limits import Limits
from octavo.engine.load import Counters, Load
from octavo.engine.outputs import Outputs
from octavo.engine.preemption import Preemption
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.prompt_rows import plan_rows
from octavo.engine.roster import Roster
from octavo.engine.sequence import Sequence, SequenceOutput, Status
from octavo.engine.step_plan import StepPlan
from octavo.engine.swap_space import SwapSpace

CopyBlock = Callable[[int, int], None]  # from, to


class Scheduler:
    """Continuous batching over paged blocks; used by the engine thread only."""

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        limits: Limits,
        model_fingerprint: str = "",
        *,
        swap: SwapSpace | None = None,
        drafts: DraftPlanner | None = None,
    ) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.limits = limits
        self.totals = Counters()
        self.copy_block: CopyBlock = _nothing  # an engine sets what copies its KV
        self._model_fingerprint = model_fingerprint
        self._drafts = drafts
        self._admission = Admission(pool, prefix_cache, limits.block_size)
        self._preemption = Preemption(pool, prefix_cache, self._admission, self.totals, swap)
        self.roster = Roster(pool, limits.block_size, self._preemption)
        self._running, self._waiting = self.roster.running, self.roster.waiting
        self._samples = self.roster.samples
        self._outputs = Outputs()
        self._booking = Booking(self.roster, prefix_cache, self._outputs, self.totals)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, fills, runs or is to be told; not every step can advance it."""
        stopped = self._preemption.stopped
        filling = self.roster.filling
        return bool(self._running or self._outputs or self._waiting or stopped or filling)

    @property
    def num_active(self) -> int:
        """Decode rows that are taken, those promised to samples of admitted requests included."""
        return self.roster.num_active

    def check(self, seq: Sequence) -> None:
        """Raise ValueError, naming the limit, if `seq` can never run to its end."""
        self.limits.check(seq)
        if seq.num_rows > 1:
            self.limits.check_samples(seq, self.pool.num_total)

    @property
    def is_mostly_filling(self) -> bool:
        """Whether fewer run than fill, and nobody waits to be admitted."""
        return len(self._running) < len(self.roster.filling) and not self._waiting

    def add(self, seq: Sequence) -> None:
        """Put a sequence, and the siblings it asks for, in the queue.

        Raises:
            ValueError: it can never run; the message names the limit.
        """
        self.check(seq)
        self.roster.add(seq)
        seq.arrival = self.totals.requests
        seq.root_key = self._root_key(seq)
        self.totals.requests += 1

    def count_cached_tokens(self, seq: Sequence) -> int:
        """Prompt tokens that admission would find cached now; `seq` need not be added."""
        seq.root_key = self._root_key(seq)
        return len(self._admission.match(seq)) * self.limits.block_size

    def _root_key(self, seq: Sequence) -> BlockKey:
        adapter = "" if seq.adapter is None else seq.adapter.fingerprint
        return root_key(seq.group_key, self._model_fingerprint, adapter)

    def release(self, seq_id: str) -> None:
        """Drop a request in any state and give its blocks back; no-op when unknown."""
        self.roster.release(seq_id)

    def stop(self, seq_id: str, samples: Set[int]) -> None:
        """Drop these samples, of a request whose samples have their first tokens."""
        self.roster.stop(seq_id, samples)

    def join(self, seq_id: str, *first: Token | BeamCandidates) -> None:
        """A filling sequence's KV is complete and verified; no-op when it was released.

        first: the first token of each sample, or the candidates of a beam search.
        """
        seq = self.roster.join(seq_id)
        if seq is None:
            return
        seq.num_computed_tokens = seq.num_tokens
        self.prefix_cache.settle(seq, 0)
        if isinstance(first[0], BeamCandidates):
            self._booking.advance_beams(seq, first[0])
            return
        for sample, token in zip(self._samples.fork(seq, seq.siblings()), first, strict=True):
            assert not isinstance(token, BeamCandidates)
            self._booking.append(sample, token)

    def end_pull(self, seq_id: str) -> None:
        """No copy writes this sequence's blocks any more; no-op when unknown."""
        self.roster.end_pull(seq_id)

    def schedule(self) -> StepPlan:
        """Plan a step: decode rows, chunks of the running, then whom there is room for."""
        plan = StepPlan()
        self._samples.copy_shared_tails(self._take_block, self.copy_block)
        budget = self._plan_decodes(plan, self.limits.max_num_batched_tokens)
        budget = self._plan_chunks(plan, budget)
        budget = self._resume(plan, budget)
        if not self._preemption.stopped:
            self._admit(plan, budget)
        if self._drafts is not None:
            self._drafts.plan(plan, self.limits.max_num_batched_tokens - plan.num_tokens)
        plan.close()
        self._samples.plan(plan)
        return plan

    def commit(self, plan: StepPlan, choices: Listed[Choice]) -> list[SequenceOutput]:
        """Book what the step computed; choices stand in the order of plan.sampled."""
        self._preemption.observe(plan)
        siblings = self._samples.fork_planned(plan, choices) if plan.siblings else []
        num_decodes, num_singles = len(plan.decodes), plan.num_single_rows
        for seq, choice in zip(plan.decodes, choices[:num_decodes], strict=True):
            self._booking.advance(seq, 1, choice)
        if plan.drafts and self._drafts is not None:
            drafted = choices[num_decodes:num_singles]
            num_right = self._drafts.commit(plan, drafted, self._booking.advance)
            self.totals.count_drafts(len(plan.drafts), num_right)
            self._outputs.join()
        num_rows = plan.num_sampled_rows
        chosen = choices[num_singles:num_rows]
        sampled = dict(zip(plan.sampled[num_singles:num_rows], chosen, strict=True))
        scores = dict(zip(plan.scored, plan.prompt_scores, strict=True))
        for chunk in plan.chunks:
            seq, score = chunk.seq, scores.get(chunk)
            self._booking.advance(seq, chunk.num_tokens, sampled.get(seq), score)
        for sibling, choice in siblings:
            self._booking.begin(sibling, choice)
        self.totals.steps += 1
        if plan.num_seqs > 0:  # an empty one says nothing about how full the blocks are
            self.totals.computing_steps += 1
            self.totals.step_seconds += plan.seconds
            self.totals.count_step(
                self.roster.holders(),
                self.pool.num_held,
                self.limits.block_size,
                self._samples.num_shared_empty(),
            )
        return self.drain_outputs()

    def drain_outputs(self) -> list[SequenceOutput]:
        """What there is to tell since the last call."""
        return self._outputs.drain()

    def load(self) -> Load:
        behind = sum(n for seq in self._running if (n := seq.num_missing_tokens) > 1)
        behind += self._preemption.num_missing_tokens
        return Load(
            running_sequences=self.num_active,
            waiting_sequences=len(self._waiting) + len(self._preemption.stopped),
            waiting_prefill_tokens=self._waiting.num_prefill_tokens + behind,
            blocks=self.pool.counts,
            steps=self.totals.steps,
            preempted_sequences=len(self._preemption.stopped),
        )

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        index = 0
        while index < len(self._running) and budget > 0:
            seq = self._running[index]
            if seq.num_missing_tokens == 1:
                if not self._ensure_slot(seq):
                    # It was preempted itself, with its siblings: the next one moved to its place.
                    budget += plan.drop_preempted()
                    index = self._running.place(seq)
                    continue
                plan.decodes.append(seq)
                budget -= 1
            index += 1
        return budget + self._samples.hold_back_beams(plan)

    def _plan_chunks(self, plan: StepPlan, budget: int) -> int:
        if len(plan.decodes) == len(self._running):
            return budget
        for seq in self._running:
            if budget > 0 and seq.num_missing_tokens > 1:
                budget = plan_rows(plan, seq, budget)
        return budget

    def _resume(self, plan: StepPlan, budget: int) -> int:
        while self._preemption.stopped and budget > 0:
            seqs = self._preemption.resume(self._samples, self.num_active, self.limits.max_num_seqs)
            if not seqs:
                break
            for seq in seqs:
                budget = self._run(plan, seq, budget)
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while self._waiting:
            seq = self._waiting.first
            if self.num_active + seq.num_rows > self.limits.max_num_seqs:
                break
            if budget == 0 and not seq.is_pulled:
                break
            if not self._try_admit(seq):
                break
            self._waiting.remove(seq)
            self.totals.prompt_tokens_cached += seq.num_cached_tokens
            if seq.is_pulled:
                self.roster.fill(seq)
                self._outputs.tell(seq)
            else:
                budget = self._run(plan, seq, budget)
                if seq.is_leased:
                    # Whoever reads its blocks may begin with the cached ones.
                    self._outputs.tell(seq)

    def _try_admit(self, seq: Sequence) -> bool:
        beside = self._samples.num_blocks_beside(seq, self._preemption.stopped)
        return self._admission.try_admit(seq, self.num_active, beside)

    def _run(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        self.roster.run(seq)
        return plan_rows(plan, seq, budget) if budget > 0 else 0

    def _ensure_slot(self, seq: Sequence) -> bool:
        """Whether the next token has a slot; False if `seq` had to give up its blocks."""
        if seq.num_computed_tokens == len(seq.block_ids) * self.limits.block_size:
            seq.add_blocks(self._take_block(seq))
            return seq.status is Status.RUNNING
        return True

    def _take_block(self, seq: Sequence) -> list[int]:
        """One block for a running sequence; none if it had to give up those it has."""
        while seq.status is Status.RUNNING:
            try:
                return self.pool.allocate(1)
            except OutOfBlocks:
                self.roster.preempt()
        return []


def _nothing(source: int, target: int) -> None:
    """No KV: the scheduler of a simulation."""
