"""Preemption by swap: what is copied where, who shares a copy, and when it is worth it."""

from pathlib import Path

import pytest
import torch

from checkpoints import reference_run, tiny_llama
from engine.counting import (
    CountingRunner,
    check_blocks,
    make_scheduler,
    make_sequence,
    run_to_end,
    step,
)
from engine.tiny import make_sequence as real_sequence
from engine.tiny import tiny_engine
from octavo.engine.admission import Admission
from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool, OutOfBlocks
from octavo.engine.host_blocks import HostBlocks
from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.engine.load import Counters
from octavo.engine.preemption import Preemption
from octavo.engine.preemption_cost import PreemptionCost
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.samples import Samples
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, Status
from octavo.engine.step_plan import Chunk, StepPlan
from octavo.engine.swap_space import SwapSpace
from octavo.sampling_params import SamplingParams

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_go_out_and_come_back_into_others_and_touch_no_more(device: str) -> None:
    layout = KVLayout("bfloat16", 3, 2, 8, 16, "f" * 32)
    cache = KVCache(layout, 8, torch.device(device))
    cache.kv.normal_()
    before = cache.kv.clone()
    host = HostBlocks(cache, 4)
    host.save([5, 1, 2], [3, 0, 2])
    cache.kv[[5, 1, 2]] = 0
    host.load([0, 2, 3], [7, 1, 4])
    assert torch.equal(cache.kv[[7, 1, 4]], before[[1, 2, 5]])
    assert torch.equal(cache.kv[[0, 3, 6]], before[[0, 3, 6]])
    assert not cache.kv[[2, 5]].any()


def swapping(
    num_blocks: int, num_host_blocks: int = 8, cost: PreemptionCost | None = None
) -> tuple[Scheduler, CountingRunner, SwapSpace]:
    runner = CountingRunner()
    swap = SwapSpace(runner, num_host_blocks, 4, cost)
    return make_scheduler(num_blocks, swap=swap), runner, swap


def run_until_preempted(scheduler: Scheduler, runner: CountingRunner, seq: Sequence) -> None:
    while seq.status is not Status.PREEMPTED:
        step(scheduler, runner)


def test_a_swapped_sequence_computes_nothing_again() -> None:
    scheduler, runner, _ = swapping(6)
    for seq_id in "ab":
        scheduler.add(make_sequence(seq_id, [ord(seq_id)] * 7, max_tokens=12))
    run_to_end(scheduler, runner)
    assert scheduler.totals.preemptions_swap == 1
    # The last token's KV is never needed.
    assert runner.num_rows == 2 * (7 + 12 - 1)


def test_a_cancelled_sequence_gives_its_host_blocks_back() -> None:
    scheduler, runner, swap = swapping(6)
    seqs = [make_sequence(seq_id, [ord(seq_id)] * 7, max_tokens=12) for seq_id in "ab"]
    for seq in seqs:
        scheduler.add(seq)
    run_until_preempted(scheduler, runner, seqs[1])
    assert swap.pool.num_held == 3
    scheduler.release("b")
    assert swap.pool.num_held == 0
    check_blocks(scheduler)
    run_to_end(scheduler, runner)
    assert scheduler.totals.blocks_swapped_in == 0


def test_what_the_prefix_cache_still_holds_is_not_copied_in() -> None:
    scheduler, runner, swap = swapping(6)
    prompt = [1] * 8  # both share its first blocks, and the first keeps them
    seqs = [make_sequence(seq_id, prompt, max_tokens=13) for seq_id in "ab"]
    for seq in seqs:
        scheduler.add(seq)
    step(scheduler, runner)
    seqs[1].token_ids[-1] = 99  # from here on their tokens differ
    run_until_preempted(scheduler, runner, seqs[1])
    assert swap.pool.num_held == 4
    run_to_end(scheduler, runner)
    # Its own third block was not needed by the other, and the fourth was not full.
    assert scheduler.totals.blocks_swapped_out == 4
    assert scheduler.totals.blocks_swapped_in == 1
    assert seqs[1].output_token_ids == [99, *range(9, 21)]


def test_a_prompt_is_swapped_in_the_middle() -> None:
    runner = CountingRunner()
    swap = SwapSpace(runner, 8, 4, None)
    scheduler = make_scheduler(8, max_num_batched_tokens=5, swap=swap)
    first = make_sequence("a", [1] * 4, max_tokens=20)
    scheduler.add(first)
    step(scheduler, runner)
    long = make_sequence("b", [2] * 18, max_tokens=2)
    scheduler.add(long)
    step(scheduler, runner)
    assert (long.num_computed_tokens, long.status) == (4, Status.RUNNING)
    scheduler.roster.preempt()
    assert long.status is Status.PREEMPTED
    assert swap.pool.num_held == 1
    assert scheduler.load().waiting_prefill_tokens == 14
    check_blocks(scheduler)
    run_to_end(scheduler, runner)
    assert long.output_token_ids == [18, 19]
    assert runner.num_rows == 4 + 19 + 18 + 1


class Group:
    """Two samples of one prompt of 16 tokens: 4 blocks are shared, and each has one of its own."""

    def __init__(self, num_blocks: int, num_host_blocks: int) -> None:
        self.runner = CountingRunner()
        self.pool = BlockPool(num_blocks)
        self.swap = SwapSpace(self.runner, num_host_blocks, 4, None)
        cache = PrefixCache(self.pool, 4)
        self.totals = Counters()
        admission = Admission(self.pool, cache, 4)
        self.preemption = Preemption(self.pool, cache, admission, self.totals, self.swap)
        self.samples = Samples(self.pool, 4, {}, Arrivals())
        shared = self.pool.allocate(4)
        self.pool.touch(shared)
        prompt = list(range(16))
        self.seqs = []
        for arrival, tail in enumerate(([20, 21], [30, 31])):
            seq = make_sequence("ab"[arrival], prompt)
            seq.arrival, seq.token_ids = arrival, [*prompt, *tail, 50]
            seq.add_blocks(shared + self.pool.allocate(1))
            seq.num_computed_tokens = 18
            self.runner.fill(seq.block_ids, seq.token_ids, range(18))
            self.seqs.append(seq)

    def contents(self, seq: Sequence) -> list[tuple[int, ...]]:
        return [
            self.runner._slots[seq.block_ids[position // 4], position % 4]
            for position in range(seq.num_computed_tokens)
        ]


def test_a_group_is_saved_once_where_it_shares_and_shares_again() -> None:
    group = Group(num_blocks=8, num_host_blocks=6)
    before = [group.contents(seq) for seq in group.seqs]
    group.preemption.stop(group.seqs)
    assert group.pool.num_held == 0
    assert (group.swap.pool.num_held, group.totals.blocks_swapped_out) == (6, 6)
    group.runner._slots.clear()
    assert group.preemption.resume(group.samples, 0, 8) == group.seqs
    assert [group.contents(seq) for seq in group.seqs] == before
    first, second = (seq.block_ids for seq in group.seqs)
    assert first[:4] == second[:4] and first[4] != second[4]
    assert (group.pool.num_held, group.swap.pool.num_held) == (6, 0)
    assert [group.pool.num_owners(block_id) for block_id in first] == [2, 2, 2, 2, 1]
    assert (group.totals.preemptions_swap, group.totals.blocks_swapped_in) == (2, 6)
    assert not group.preemption.stopped


def test_a_group_comes_back_as_a_whole_or_not_at_all() -> None:
    group = Group(num_blocks=8, num_host_blocks=6)
    group.preemption.stop(group.seqs)
    others = group.pool.allocate(3)  # 5 are left, and it needs 6
    assert group.preemption.resume(group.samples, 0, 8) == []
    assert (group.pool.num_held, group.swap.pool.num_held) == (3, 6)
    group.pool.free(others)
    assert (
        group.preemption.resume(group.samples, 0, 1) == []
    )  # there is room for one sequence in a step
    assert (
        group.preemption.resume(group.samples, 3, 8) == []
    )  # three others shall have a block each
    assert group.preemption.resume(group.samples, 2, 8) == group.seqs


def test_a_group_without_room_on_the_host_is_computed_again_one_by_one() -> None:
    group = Group(num_blocks=8, num_host_blocks=5)
    group.preemption.stop(group.seqs)
    assert (group.swap.pool.num_held, group.totals.preemptions_recompute) == (0, 2)
    assert group.preemption.resume(group.samples, 0, 8) == [group.seqs[0]]
    assert group.seqs[0].num_computed_tokens == 0


def test_a_member_that_is_cancelled_leaves_the_others_what_they_share() -> None:
    group = Group(num_blocks=8, num_host_blocks=6)
    expected = group.contents(group.seqs[1])
    group.preemption.stop(group.seqs)
    group.preemption.release(group.seqs[0])
    assert group.swap.pool.num_held == 5
    assert group.preemption.resume(group.samples, 0, 8) == [group.seqs[1]]
    assert group.contents(group.seqs[1]) == expected
    assert group.swap.pool.num_held == 0


def plan_of(num_decodes: int, num_tokens: int, seconds: float) -> StepPlan:
    seq = make_sequence("x", [1])
    chunks = [Chunk(seq, num_tokens)] if num_tokens else []
    return StepPlan([seq] * num_decodes, chunks=chunks, seconds=seconds)


def test_the_cheaper_way_is_that_of_the_formula() -> None:
    pool, cost = BlockPool(8), PreemptionCost(4)
    seq = make_sequence("a", [1] * 20)
    seq.add_blocks(pool.allocate(6))
    seq.num_computed_tokens = 18  # in 5 of them
    cost.block_copy.add(2, 0.010)  # 5 ms a block: 50 ms out and in
    assert not cost.favours_swap([seq], pool)  # nothing is known of computing
    cost.add_step(plan_of(4, 0, 0.012))  # 3 ms a row: 60 ms for the tokens of 5 blocks
    assert cost.favours_swap([seq], pool)
    cost.add_step(plan_of(0, 10, 0.020))  # 2 ms a token: 40 ms
    assert not cost.favours_swap([seq], pool)
    cost.add_step(plan_of(0, 100, 0.330))
    assert cost.favours_swap([seq], pool)
    pool.touch(seq.block_ids[:2])  # others hold these, so that 3 blocks would be computed: 38 ms
    assert not cost.favours_swap([seq], pool)


def test_the_last_measurements_count_most() -> None:
    cost = PreemptionCost(4)
    for _ in range(50):
        cost.block_copy.add(1, 1.0)
    for _ in range(50):
        cost.block_copy.add(1, 0.001)
    assert cost.block_copy.seconds == pytest.approx(0.001, abs=0.01)


def test_a_host_pool_that_is_full_refuses_and_copies_nothing() -> None:
    _, runner, swap = swapping(6, num_host_blocks=1)
    seq = make_sequence("a", [1] * 8)
    seq.block_ids, seq.num_computed_tokens = [0, 1], 8
    with pytest.raises(OutOfBlocks):
        swap.save([seq])
    assert swap.pool.num_held == 0 and not runner._host


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.mark.parametrize("policy", ["swap", "auto"])
def test_a_model_that_was_swapped_goes_on_as_if_nothing_happened(llama: Path, policy: str) -> None:
    """In `auto` because a copy takes less than computing, as measured on the spot."""
    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    prompts = [[3 + (7 * i + j) % 300 for j in range(15 + i)] for i in range(4)]
    engine = tiny_engine(llama, num_blocks=9, preemption=policy, swap_space_bytes=1 << 20)
    seqs = [real_sequence(str(i), prompt, greedy) for i, prompt in enumerate(prompts)]
    for seq in seqs:
        engine.scheduler.add(seq)
    while engine.scheduler.has_work:
        engine.step()
    counters = engine.counters()
    assert counters.preemptions_swap > 0 and counters.preemptions_recompute == 0
    assert 0 < counters.blocks_swapped_in <= counters.blocks_swapped_out
    for seq in seqs:
        expected = reference_run(llama, seq.token_ids[: seq.num_prompt_tokens], 40, ignore_eos=True)
        assert seq.output_token_ids == list(expected.token_ids)
