"""Decides what each step computes, and keeps every sequence's tokens and blocks.

    add --> waiting --admit--> running --schedule--> StepPlan --execute--> commit --> outputs
                 \\--admit--> filling --join--^  |
                     preempted <--out of blocks--+     release, at any point, gives all back

There is no prefill or decode phase: a sequence has known tokens and computed tokens, and a step
computes some of the difference. One token behind is a decode row, more is a chunk.
"""

from collections.abc import Sequence as Listed
from itertools import chain

from octavo.block_key import root_key
from octavo.engine.admission import Admission
from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool, OutOfBlocks
from octavo.engine.choice import Choice, PromptScore, ScoredToken
from octavo.engine.errors import InvalidLogits
from octavo.engine.limits import Limits
from octavo.engine.load import Counters, Load
from octavo.engine.outputs import Outputs
from octavo.engine.preemption import choose_victim, recompute
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.prompt_rows import plan_scored_rows
from octavo.engine.sequence import Sequence, SequenceOutput, Status
from octavo.engine.step_plan import Chunk, StepPlan
from octavo.engine.waiting_queue import WaitingQueue
from octavo.token_logprobs import TokenLogprobs


class Scheduler:
    """Continuous batching over paged blocks; used by the engine thread only."""

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        limits: Limits,
        model_fingerprint: str = "",
    ) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.limits = limits
        self.totals = Counters()
        self._model_fingerprint = model_fingerprint
        self._admission = Admission(pool, prefix_cache, limits.block_size)
        self._sequences: dict[str, Sequence] = {}  # every one not released or ended
        self._waiting = WaitingQueue()
        self._running = Arrivals()
        self._preempted = Arrivals()
        self._filling: dict[str, Sequence] = {}
        self._lingering: dict[str, Sequence] = {}  # finished, their lease still holds the blocks
        self._pulls: dict[str, list[int]] = {}  # blocks that copies may still be writing
        self._outputs = Outputs()

    @property
    def has_work(self) -> bool:
        """Whether anything waits, fills, runs or is to be told; not every step can advance it."""
        return bool(
            self._running or self._outputs or self._waiting or self._preempted or self._filling
        )

    @property
    def num_active(self) -> int:
        return len(self._running) + len(self._filling)

    @property
    def is_mostly_filling(self) -> bool:
        """Whether fewer run than fill, and nobody waits to be admitted."""
        return len(self._running) < len(self._filling) and not self._waiting

    def add(self, seq: Sequence) -> None:
        """Put a sequence in the queue.

        Raises:
            ValueError: it can never run; the message names the limit.
        """
        self.limits.check(seq)
        if seq.seq_id in self._sequences or seq.seq_id in self._pulls:
            raise ValueError(f"sequence {seq.seq_id} is in the engine already")
        seq.arrival = self.totals.requests
        seq.root_key = root_key(seq.group_key, self._model_fingerprint)
        self.totals.requests += 1
        self._sequences[seq.seq_id] = seq
        self._waiting.append(seq)

    def count_cached_tokens(self, seq: Sequence) -> int:
        """Prompt tokens that admission would find cached now; `seq` need not be added."""
        seq.root_key = root_key(seq.group_key, self._model_fingerprint)
        return len(self._admission.match(seq)) * self.limits.block_size

    def release(self, seq_id: str) -> None:
        """Drop a sequence in any state and give its blocks back; no-op when unknown."""
        seq = self._sequences.pop(seq_id, None)
        if seq is None:
            return
        match seq.status:
            case Status.WAITING:
                self._waiting.remove(seq)
            case Status.FILLING:
                del self._filling[seq_id]
            case Status.RUNNING:
                self._running.remove(seq)
            case Status.PREEMPTED:
                self._preempted.remove(seq)
            case Status.FINISHED:
                del self._lingering[seq_id]
        seq.status = Status.FINISHED
        self._free(seq)

    def join(self, seq_id: str, first_token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """A filling sequence's KV is complete and verified; no-op when it was released.

        logprobs: of the first token, if the sequence asks for them.
        """
        seq = self._sequences.get(seq_id)
        if seq is None:
            return
        if seq.status is not Status.FILLING:
            raise ValueError(f"sequence {seq_id} is {seq.status.name}, only FILLING ones join")
        del self._filling[seq_id]
        seq.num_computed_tokens = seq.num_tokens
        self._register(seq, 0)
        seq.status = Status.RUNNING
        self._running.add(seq)
        self._append(seq, first_token_id, logprobs)

    def end_pull(self, seq_id: str) -> None:
        """No copy writes this sequence's blocks any more; no-op when unknown."""
        self.pool.free(self._pulls.pop(seq_id, []))

    def schedule(self) -> StepPlan:
        """Plan a step: decode rows, chunks of the running, then whom there is room for."""
        plan = StepPlan()
        budget = self._plan_decodes(plan, self.limits.max_num_batched_tokens)
        budget = self._plan_chunks(plan, budget)
        budget = self._resume(plan, budget)
        if not self._preempted:
            self._admit(plan, budget)
        plan.close()
        return plan

    def commit(self, plan: StepPlan, choices: Listed[Choice]) -> list[SequenceOutput]:
        """Book what the step computed; choices stand in the order of plan.sampled."""
        num_decodes = len(plan.decodes)
        for seq, choice in zip(plan.decodes, choices[:num_decodes], strict=True):
            self._advance(seq, 1, choice)
        sampled = dict(zip(plan.sampled[num_decodes:], choices[num_decodes:], strict=True))
        scores = dict(zip(plan.scored, plan.prompt_scores, strict=True))
        for chunk in plan.chunks:
            self._advance(chunk.seq, chunk.num_tokens, sampled.get(chunk.seq), scores.get(chunk))
        holders = chain(self._running, self._filling.values(), self._lingering.values())
        self.totals.count_step(
            holders, self.pool.num_held, self.limits.block_size, did_compute=plan.num_seqs > 0
        )
        return self.drain_outputs()

    def drain_outputs(self) -> list[SequenceOutput]:
        """What there is to tell since the last call."""
        return self._outputs.drain()

    def load(self) -> Load:
        missing = [seq.num_missing_tokens for seq in self._running]
        behind = sum(missing) - missing.count(1)
        preempted = sum(seq.num_tokens for seq in self._preempted)
        return Load(
            running_sequences=self.num_active,
            waiting_sequences=len(self._waiting) + len(self._preempted),
            waiting_prefill_tokens=self._waiting.num_prefill_tokens + behind + preempted,
            blocks=self.pool.counts,
            steps=self.totals.steps,
        )

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        index = 0
        while index < len(self._running) and budget > 0:
            seq = self._running[index]
            if seq.num_missing_tokens == 1:
                if not self._ensure_slot(seq):
                    continue  # it was preempted itself: the next one moved to its place
                plan.decodes.append(seq)
                budget -= 1
            index += 1
        return budget

    def _plan_chunks(self, plan: StepPlan, budget: int) -> int:
        if len(plan.decodes) == len(self._running):
            return budget
        for seq in self._running:
            if budget > 0 and seq.num_missing_tokens > 1:
                budget = self._plan_rows(plan, seq, budget)
        return budget

    def _plan_rows(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        num_tokens = min(seq.num_missing_tokens, budget)
        if seq.num_missing_tokens == 1:
            plan.decodes.append(seq)
        elif seq.num_unscored_rows > 0:
            num_tokens = plan_scored_rows(plan, seq, num_tokens)
        else:
            plan.add(Chunk(seq, num_tokens))
        return budget - num_tokens

    def _resume(self, plan: StepPlan, budget: int) -> int:
        while self._preempted and budget > 0 and self.num_active < self.limits.max_num_seqs:
            seq = self._preempted[0]
            if not self._admission.try_admit(seq, self.num_active):
                break
            self._preempted.remove(seq)
            budget = self._run(plan, seq, budget)
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while self._waiting and self.num_active < self.limits.max_num_seqs:
            seq = self._waiting.first
            if budget == 0 and not seq.is_pulled:
                break
            if not self._admission.try_admit(seq, self.num_active):
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

    def _run(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        seq.status = Status.RUNNING
        self._running.add(seq)
        return self._plan_rows(plan, seq, budget)

    def _fill(self, seq: Sequence) -> None:
        seq.status = Status.FILLING
        self._filling[seq.seq_id] = seq
        # Copies own their destination: these stay held until end_pull, whatever becomes of seq.
        self._pulls[seq.seq_id] = seq.block_ids[seq.num_registered_blocks :]
        self.pool.touch(self._pulls[seq.seq_id])
        self._outputs.tell(seq)

    def _ensure_slot(self, seq: Sequence) -> bool:
        """Whether the next token has a slot; False if `seq` had to give up its blocks."""
        while seq.num_computed_tokens == len(seq.block_ids) * self.limits.block_size:
            try:
                seq.add_blocks(self.pool.allocate(1))
            except OutOfBlocks:
                victim = choose_victim(self._running)
                self._running.remove(victim)
                recompute(victim, self.pool)
                self._preempted.add(victim)
                self.totals.preemptions += 1
                if victim is seq:
                    return False
        return True

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
                self._finish(seq)  # and register nothing: its KV may be as bad as its logits
                self._outputs.tell_error(seq, found)
                return
        self._register(seq, num_before)
        if isinstance(score, TokenLogprobs):
            self._outputs.tell_score(seq, score)
        if isinstance(sampled, ScoredToken):
            self._append(seq, sampled.token_id, sampled.logprobs)
        elif isinstance(sampled, int):
            self._append(seq, sampled)
        elif seq.is_leased or not seq.is_announced:
            self._outputs.tell(seq)

    def _register(self, seq: Sequence, num_before: int) -> None:
        """Let the prefix cache find the blocks that filled up since num_before tokens."""
        block_size = self.limits.block_size
        if seq.num_computed_tokens // block_size == num_before // block_size and num_before:
            return
        # A lease's reader may be in the middle of a block that an earlier output showed as written.
        num_shown = -(-num_before // block_size) if seq.is_leased else 0
        shown = set(seq.block_ids[:num_shown])
        duplicates = self.prefix_cache.commit(seq)
        seq.retired_block_ids += [block_id for block_id in duplicates if block_id in shown]
        self.pool.free([block_id for block_id in duplicates if block_id not in shown])

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
        else:
            del self._sequences[seq.seq_id]
            self._free(seq)

    def _free(self, seq: Sequence) -> None:
        self.pool.free(seq.take_blocks())
        self.pool.free(seq.retired_block_ids)
        seq.retired_block_ids = []
