"""Small parts for engine tests: a runner without a model, and the invariants of a scheduler."""

from collections import Counter

from octavo.engine.block_pool import BlockPool
from octavo.engine.draft_planner import DraftPlanner
from octavo.engine.draft_row import BatchRow, DraftRow
from octavo.engine.errors import InvalidLogits
from octavo.engine.limits import Limits
from octavo.engine.prefix_cache import KeyFunction, PrefixCache
from octavo.engine.row_cost import RowCost
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, SequenceOutput, Status
from octavo.engine.step_plan import StepPlan
from octavo.sampling_params import SamplingParams

GROUP = b"g" * 32


class CountingRunner:
    """Stands in for the model: the next token is the number of tokens known so far.

    In place of KV each slot gets the tokens it would be computed from; every row then checks that
    its whole table holds what attention over it would need.
    """

    def __init__(self, block_size: int = 4) -> None:
        self.num_rows = 0
        self._block_size = block_size
        self._slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def execute(self, plan: StepPlan) -> list[int | InvalidLogits]:
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
        return [self.draw(row) for row in plan.sampled]

    def draw(self, row: BatchRow) -> int:
        return row.num_tokens

    def fill(self, block_ids: list[int], token_ids: list[int], positions: range) -> None:
        """Write what KV at these positions is computed from."""
        for position in positions:
            slot = block_ids[position // self._block_size], position % self._block_size
            self._slots[slot] = tuple(token_ids[: position + 1])


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
    key_function: KeyFunction | None = None,
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
    if key_function is None:
        cost = RowCost(fixed=0.1, per_token=0.0)
        drafts = DraftPlanner(pool, limits, max_draft_tokens, cost) if max_draft_tokens else None
        return Scheduler(pool, PrefixCache(pool, block_size), limits, drafts=drafts)
    return Scheduler(pool, PrefixCache(pool, block_size, key_function), limits)


def make_sequence(seq_id: str, prompt: list[int], max_tokens: int = 4, **fields: bool) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Sequence(seq_id, list(prompt), len(prompt), sampling, GROUP, **fields)


def step(scheduler: Scheduler, runner: CountingRunner) -> list[SequenceOutput]:
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
    for seq in scheduler._sequences.values():
        assert len(set(seq.block_ids)) == len(seq.block_ids)
        owners.update(seq.block_ids)
        owners.update(seq.retired_block_ids)
        if seq.status in (Status.WAITING, Status.PREEMPTED):
            assert not seq.block_ids
    for block_ids in scheduler._pulls.values():
        owners.update(block_ids)
    assert [pool.num_owners(block_id) for block_id in range(counts.total)] == [
        owners[block_id] for block_id in range(counts.total)
    ]
