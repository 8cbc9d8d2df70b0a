"""Decides what each step computes, and keeps every sequence's tokens and blocks.

    add --> waiting --admit--> running --schedule--> StepPlan --execute--> commit --> outputs
                 \\--admit--> filling --join--^  |
                     preempted <--out of blocks--+     release, at any point, gives all back

There is no prefill or decode phase: a sequence has known tokens and computed tokens, and a step
computes some of the difference. One token behind is a decode row, more is a chunk; what a step has
room for besides are drafts, rows of tokens that are only guessed (draft_row.py).
"""

from collections.abc import Callable, Set
from collections.abc import Sequence as Listed
from itertools import chain

from octavo.block_key import BlockKey, root_key
from octavo.engine.admission import Admission
from octavo.engine.arrivals import Arrivals
from octavo.engine.beam_state import BeamCandidates
from octavo.engine.block_pool import BlockPool, OutOfBlocks
from octavo.engine.choice import Choice, PromptScore, ScoredToken, Token
from octavo.engine.draft_planner import DraftPlanner
from octavo.engine.errors import InvalidLogits
from octavo.engine.limits import Limits
from octavo.engine.load import Counters, Load
from octavo.engine.outputs import Outputs
from octavo.engine.preemption import Preemption, choose_victims
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.prompt_rows import plan_rows
from octavo.engine.samples import Samples
from octavo.engine.sequence import Sequence, SequenceOutput, Status
from octavo.engine.step_plan import StepPlan
from octavo.engine.swap_space import SwapSpace
from octavo.engine.waiting_queue import WaitingQueue
from octavo.token_logprobs import TokenLogprobs

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
        # Every one not released or ended; those of an id are samples of one request.
        self._sequences: dict[str, list[Sequence]] = {}
        self._waiting = WaitingQueue()
        self._running = Arrivals()
        self._samples = Samples(pool, limits.block_size, self._sequences, self._running)
        self._filling: dict[str, Sequence] = {}
        self._lingering: dict[str, Sequence] = {}  # finished, their lease still holds the blocks
        self._pulls: dict[str, list[int]] = {}  # blocks that copies may still be writing
        self._outputs = Outputs()

    @property
    def has_work(self) -> bool:
        """Whether anything waits, fills, runs or is to be told; not every step can advance it."""
        stopped = self._preemption.stopped
        return bool(self._running or self._outputs or self._waiting or stopped or self._filling)

    @property
    def num_active(self) -> int:
        """Decode rows that are taken, those promised to samples of admitted requests included."""
        return len(self._running) + len(self._filling) + self._samples.num_promised

    def check(self, seq: Sequence) -> None:
        """Raise ValueError, naming the limit, if `seq` can never run to its end."""
        self.limits.check(seq)
        if seq.num_rows > 1:
            self.limits.check_samples(seq, self.pool.num_total)

    def add(self, seq: Sequence) -> None:
        """Put a sequence, and the siblings it asks for, in the queue.

        Raises:
            ValueError: it can never run; the message names the limit.
        """
        self.check(seq)
        if seq.seq_id in self._sequences or seq.seq_id in self._pulls:
            raise ValueError(f"sequence {seq.seq_id} is in the engine already")
        seq.arrival = self.totals.requests
        seq.root_key = self._root_key(seq)
        self.totals.requests += 1
        self._sequences[seq.seq_id] = [seq]
        self._waiting.append(seq)

    def count_cached_tokens(self, seq: Sequence) -> int:
        """Prompt tokens that admission would find cached now; `seq` need not be added."""
        seq.root_key = self._root_key(seq)
        return len(self._admission.match(seq)) * self.limits.block_size

    def _root_key(self, seq: Sequence) -> BlockKey:
        adapter = "" if seq.adapter is None else seq.adapter.fingerprint
        return root_key(seq.group_key, self._model_fingerprint, adapter)

    def release(self, seq_id: str) -> None:
        """Drop a request in any state and give its blocks back; no-op when unknown."""
        for seq in self._sequences.pop(seq_id, ()):
            self._drop(seq)

    def stop(self, seq_id: str, samples: Set[int]) -> None:
        """Drop these samples, of a request whose samples have their first tokens."""
        left = self._sequences.get(seq_id, [])
        for seq in list(left):
            if seq.sample_index in samples and not seq.num_siblings and seq.beams is None:
                left.remove(seq)
                self._drop(seq)
        if not left:
            self._sequences.pop(seq_id, None)

    def _drop(self, seq: Sequence) -> None:
        match seq.status:
            case Status.WAITING:
                self._waiting.remove(seq)
            case Status.FILLING:
                del self._filling[seq.seq_id]
            case Status.RUNNING:
                self._running.remove(seq)
            case Status.PREEMPTED:
                self._preemption.release(seq)
            case Status.FINISHED:
                del self._lingering[seq.seq_id]
        seq.status = Status.FINISHED
        self._free(seq)

    def join(self, seq_id: str, *first: Token | BeamCandidates) -> None:
        """A filling sequence's KV is complete and verified; no-op when it was released.

        first: the first token of each sample, or the candidates of a beam search.
        """
        if seq_id not in self._sequences:
            return
        (seq,) = self._sequences[seq_id]
        if seq.status is not Status.FILLING:
            raise ValueError(f"sequence {seq_id} is {seq.status.name}, only FILLING ones join")
        del self._filling[seq_id]
        seq.num_computed_tokens = seq.num_tokens
        self.prefix_cache.settle(seq, 0)
        seq.status = Status.RUNNING
        self._running.add(seq)
        if isinstance(first[0], BeamCandidates):
            self._advance_beams(seq, first[0])
            return
        for sample, token in zip(self._samples.fork(seq, seq.siblings()), first, strict=True):
            assert not isinstance(token, BeamCandidates)
            self._append_token(sample, token)

    def end_pull(self, seq_id: str) -> None:
        """No copy writes this sequence's blocks any more; no-op when unknown."""
        self.pool.free(self._pulls.pop(seq_id, []))

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
            self._advance(seq, 1, choice)
        if plan.drafts and self._drafts is not None:
            num_right = self._drafts.commit(plan, choices[num_decodes:num_singles], self._advance)
            self.totals.count_drafts(len(plan.drafts), num_right)
            self._outputs.join()
        num_rows = plan.num_sampled_rows
        chosen = choices[num_singles:num_rows]
        sampled = dict(zip(plan.sampled[num_singles:num_rows], chosen, strict=True))
        scores = dict(zip(plan.scored, plan.prompt_scores, strict=True))
        for chunk in plan.chunks:
            self._advance(chunk.seq, chunk.num_tokens, sampled.get(chunk.seq), scores.get(chunk))
        for sibling, choice in siblings:
            self.prefix_cache.settle(sibling, 0)
            self._append_token(sibling, choice)
        self.totals.steps += 1
        if plan.num_seqs > 0:  # an empty one says nothing about how full the blocks are
            self.totals.count_step(
                chain(self._running, self._filling.values(), self._lingering.values()),
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
                self._fill(seq)
            else:
                budget = self._run(plan, seq, budget)
                if seq.is_leased:
                    # Whoever reads its blocks may begin with the cached ones.
                    self._outputs.tell(seq)

    def _try_admit(self, seq: Sequence) -> bool:
        beside = self._samples.num_blocks_beside(seq, self._preemption.stopped)
        return self._admission.try_admit(seq, self.num_active, beside)

    def _run(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        seq.status = Status.RUNNING
        self._samples.admit(seq)
        self._running.add(seq)
        return plan_rows(plan, seq, budget) if budget > 0 else 0

    def _fill(self, seq: Sequence) -> None:
        seq.status = Status.FILLING
        self._samples.admit(seq)
        self._filling[seq.seq_id] = seq
        # Copies own their destination: these stay held until end_pull, whatever becomes of seq.
        self._pulls[seq.seq_id] = seq.block_ids[seq.num_registered_blocks :]
        self.pool.touch(self._pulls[seq.seq_id])
        self._outputs.tell(seq)

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
                self._preempt()
        return []

    def _preempt(self) -> None:
        victims = choose_victims(self._running)
        for victim in victims:
            self._running.remove(victim)
            self._samples.forget(victim)
        if victims[0].beams is not None:
            victims = self._samples.restart_search(victims)
        self._preemption.stop(victims)

    def _advance(
        self,
        seq: Sequence,
        num_tokens: int,
        sampled: Choice | None,
        score: PromptScore | None = None,
    ) -> None:
        num_before = seq.num_computed_tokens
        seq.num_computed_tokens += num_tokens
        num_prompt_left = seq.num_prompt_tokens - num_before
        if num_prompt_left > 0:
            self.totals.prompt_tokens_computed += min(num_tokens, num_prompt_left)
        for found in (score, sampled):
            if isinstance(found, InvalidLogits):
                self._fail(seq, found)  # and register nothing: its KV may be as bad as its logits
                return
        self.prefix_cache.settle(seq, num_before)
        if isinstance(score, TokenLogprobs):
            self._outputs.tell_score(seq, score)
        if isinstance(sampled, int):
            self._append(seq, sampled)
        elif isinstance(sampled, ScoredToken):
            self._append(seq, sampled.token_id, sampled.logprobs)
        elif isinstance(sampled, BeamCandidates):
            self._advance_beams(seq, sampled)
        elif seq.is_leased or not seq.is_announced:
            self._outputs.tell(seq)

    def _fail(self, seq: Sequence, error: InvalidLogits) -> None:
        """End a sequence, and the other beams of its search."""
        for each in [seq] if seq.beams is None else list(self._sequences[seq.seq_id]):
            self._finish(each)
        self._outputs.tell_error(seq, error)

    def _advance_beams(self, seq: Sequence, found: BeamCandidates) -> None:
        """Take the next step of a search, of which `seq` is a beam, or the prompt."""
        if seq.is_leased:
            self._finish(seq)
            self._outputs.tell_candidates(seq, found)
            return
        if seq.num_siblings:
            self._samples.fork(seq, seq.siblings())
        beams, search = self._sequences[seq.seq_id], seq.beams
        assert search is not None
        moves = search.advance(found)
        self.totals.tokens_generated += len(moves)
        if not search.is_done:
            self._samples.move(beams, moves)
            return
        for index, beam in enumerate(search.results(seq.sampling.n)):
            self._outputs.tell_beam(seq, index, beam)
        for beam_seq in list(beams):
            self._finish(beam_seq)

    def _append_token(self, seq: Sequence, token: Token) -> None:
        if isinstance(token, ScoredToken):
            self._append(seq, token.token_id, token.logprobs)
        else:
            self._append(seq, token)

    def _append(self, seq: Sequence, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        first_index = seq.num_output_tokens
        seq.append(token_id)
        self.totals.tokens_generated += 1
        if seq.finish_reason is not None:
            self._finish(seq)
        self._outputs.tell(seq, (token_id,), first_index, logprobs)

    def _finish(self, seq: Sequence) -> None:
        self._running.remove(seq)
        seq.status = Status.FINISHED
        if seq.is_leased:
            self._lingering[seq.seq_id] = seq
            return
        self._free(seq)
        left = self._sequences[seq.seq_id]
        left.remove(seq)
        if not left:
            del self._sequences[seq.seq_id]

    def _free(self, seq: Sequence) -> None:
        self._samples.forget(seq)
        self.pool.free(seq.take_blocks())
        self.pool.free(seq.retired_block_ids)
        seq.retired_block_ids = []


def _nothing(source: int, target: int) -> None:
    """No KV: the scheduler of a simulation."""
