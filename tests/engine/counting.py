"""Small parts for engine tests: a runner without a model, and the invariants of a scheduler."""

from collections import Counter
from collections.abc import Sequence as Ids
from itertools import chain

import torch

from octavo.block_key import block_key
from octavo.engine.beam_choice import choose_beams
from octavo.engine.block_pool import BlockPool
from octavo.engine.choice import Choice
from octavo.engine.draft_planner import DraftPlanner
from octavo.engine.draft_row import BatchRow, DraftRow
from octavo.engine.limits import Limits
from octavo.engine.prefix_cache import KeyFunction, PrefixCache
from octavo.engine.row_cost import RowCost
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, SequenceOutput, Status
from octavo.engine.step_plan import StepPlan
from octavo.engine.swap_space import SwapSpace
from octavo.sampling_params import BeamSearch, SamplingParams

GROUP = b"g" * 32


class CountingRunner:
    """Stands in for the model: the next token is the number of tokens known so far, plus 1000 for
    each sample before its own; beams see random logits of four tokens.

    In place of KV each slot gets the tokens it would be computed from; every row then checks that
    its whole table holds what attention over it would need.
    """

    def __init__(self, block_size: int = 4) -> None:
        self.num_rows = 0
        self.copies: list[tuple[int, int]] = []
        self._block_size = block_size
        self._random = torch.Generator().manual_seed(0)
        self._slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self._host: dict[int, dict[int, tuple[int, ...]]] = {}  # by host block, by offset

    def execute(self, plan: StepPlan) -> list[Choice]:
        self.num_rows += plan.num_tokens
        rows = planned_rows(plan)
        for row, num_tokens in rows:
            start = row.num_computed_tokens
            self.fill(blocks_of(row), row.token_ids, range(start, start + num_tokens))
        for row, num_tokens in rows:
            block_ids = blocks_of(row)
            for position in range(row.num_computed_tokens + num_tokens):
                slot = block_ids[position // self._block_size], position % self._block_size
                assert self._slots[slot] == tuple(row.token_ids[: position + 1])
        choices: list[Choice] = [self.draw(row) for row in plan.sampled]
        if any(row.beams is not None for row in plan.sampled if isinstance(row, Sequence)):
            logits = torch.randn(len(plan.sampled), 4, generator=self._random)
            choose_beams(logits, plan.sampled, range(len(plan.sampled)), choices)
        return choices

    def draw(self, row: BatchRow) -> int:
        return row.num_tokens + 1000 * row.sample_index

    def copy_block(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        for offset in range(self._block_size):
            if (source, offset) in self._slots:
                self._slots[target, offset] = self._slots[source, offset]

    def fill(self, block_ids: list[int], token_ids: list[int], positions: range) -> None:
        """Write what KV at these positions is computed from."""
        for position in positions:
            slot = block_ids[position // self._block_size], position % self._block_size
            self._slots[slot] = tuple(token_ids[: position + 1])

    def save(self, block_ids: Ids[int], host_ids: Ids[int]) -> None:
        """The host copies of a swap space; what was in a block stays there."""
        for block_id, host_id in zip(block_ids, host_ids, strict=True):
            self._host[host_id] = {
                offset: tokens
                for (block, offset), tokens in self._slots.items()
                if block == block_id
            }

    def load(self, host_ids: Ids[int], block_ids: Ids[int]) -> None:
        for host_id, block_id in zip(host_ids, block_ids, strict=True):
            for offset in range(self._block_size):
                self._slots.pop((block_id, offset), None)
            for offset, tokens in self._host[host_id].items():
                self._slots[block_id, offset] = tokens


def planned_rows(plan: StepPlan) -> list[tuple[BatchRow, int]]:
    """(whose, number of rows) in the order of the batch."""
    chunks: list[tuple[BatchRow, int]] = [(c.seq, c.num_tokens) for c in plan.chunks]
    return [(row, 1) for row in plan.single_rows] + chunks


def blocks_of(row: BatchRow) -> list[int]:
    return row.seq.block_ids if isinstance(row, DraftRow) else row.block_ids


def make_scheduler(
    num_blocks: int,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    key_function: KeyFunction = block_key,
    swap: SwapSpace | None = None,
    max_draft_tokens: int = 0,
) -> Scheduler:
    pool = BlockPool(num_blocks)
    limits = Limits(
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        num_blocks * block_size,
        num_draft_rows=max_draft_tokens,
    )
    cost = RowCost(fixed=0.1, per_token=0.0)
    drafts = DraftPlanner(pool, limits, max_draft_tokens, cost) if max_draft_tokens else None
    cache = PrefixCache(pool, block_size, key_function)
    return Scheduler(pool, cache, limits, swap=swap, drafts=drafts)


def make_sequence(
    seq_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    n: int = 1,
    beams: BeamSearch | None = None,
    **fields: bool,
) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, n=n, beam_search=beams)
    return Sequence(seq_id, list(prompt), len(prompt), sampling, GROUP, **fields)


def step(scheduler: Scheduler, runner: CountingRunner) -> list[SequenceOutput]:
    scheduler.copy_block = runner.copy_block
    plan = scheduler.schedule()
    check_plan(scheduler, plan)
    outputs = scheduler.commit(plan, runner.execute(plan))
    check_blocks(scheduler)
    return outputs


def run_to_end(scheduler: Scheduler, runner: CountingRunner, max_steps: int = 1000) -> list[int]:
    """Tokens of every output, in order."""
    token_ids: list[int] = []
    for _ in range(max_steps):
        if not scheduler.has_work:
            return token_ids
        token_ids += [token for output in step(scheduler, runner) for token in output.token_ids]
    raise AssertionError(f"still at work after {max_steps} steps: {scheduler.load()}")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    limits = scheduler.limits
    assert plan.num_tokens <= limits.max_num_batched_tokens
    assert plan.num_seqs <= limits.max_num_seqs
    written: Counter[tuple[int, int]] = Counter()
    for row, num_tokens in planned_rows(plan):
        seq = row.seq if isinstance(row, DraftRow) else row
        assert seq.status is Status.RUNNING
        start = row.num_computed_tokens
        assert start + num_tokens <= len(seq.block_ids) * limits.block_size
        for position in range(start, start + num_tokens):
            block_id = seq.block_ids[position // limits.block_size]
            assert block_id not in scheduler.prefix_cache._by_block, "a keyed block is written"
            written[block_id, position % limits.block_size] += 1
    assert all(count == 1 for count in written.values()), "two sequences write one slot"


def check_blocks(scheduler: Scheduler) -> None:
    """Every reference has an owner, every owner a reference, and the pool adds up."""
    pool = scheduler.pool
    counts = pool.counts
    assert counts.free + counts.cached + counts.held == counts.total
    owners: Counter[int] = Counter()
    for seq in chain.from_iterable(scheduler.roster.by_id.values()):
        assert len(set(seq.block_ids)) == len(seq.block_ids)
        owners.update(seq.block_ids)
        owners.update(seq.retired_block_ids)
        if seq.status in (Status.WAITING, Status.PREEMPTED):
            assert not seq.block_ids
    for block_ids in scheduler.roster.pulls.values():
        owners.update(block_ids)
    check_host_blocks(scheduler)
    assert [pool.num_owners(block_id) for block_id in range(counts.total)] == [
        owners[block_id] for block_id in range(counts.total)
    ]


def check_host_blocks(scheduler: Scheduler) -> None:
    """Only stopped sequences have host blocks, each of which knows all its owners."""
    swap = scheduler._preemption._swap
    if swap is None:
        return
    assert swap.pool.counts.free + swap.pool.counts.held == swap.pool.num_total
    owners: Counter[int] = Counter()
    for seq, saved in swap._saved.items():
        assert any(seq is known for known in scheduler.roster.by_id[seq.seq_id])
        assert seq.status is Status.PREEMPTED
        assert seq in saved.group and set(saved.group) <= set(scheduler._preemption.stopped)
        block_size = scheduler.limits.block_size
        assert len(saved.host_ids) == -(-saved.num_tokens // block_size) > 0
        assert saved.num_tokens < seq.num_tokens
        owners.update(saved.host_ids)
    assert [swap.pool.num_owners(i) for i in range(swap.pool.num_total)] == [
        owners[i] for i in range(swap.pool.num_total)
    ]
