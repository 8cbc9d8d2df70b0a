"""Samples of one request: one prompt, shared blocks, and a copy of what two would write to."""

from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints import tiny_llama
from engine.counting import (
    GROUP,
    CountingRunner,
    check_blocks,
    make_scheduler,
    make_sequence,
    run_to_end,
    step,
)
from engine.tiny import tiny_engine
from octavo.engine.errors import InvalidLogits
from octavo.engine.philox import sample_seed
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import FinishReason, Sequence
from octavo.sampling_params import SamplingParams


def samples_of(scheduler: Scheduler, seq_id: str) -> list[Sequence]:
    return scheduler.roster.by_id[seq_id]


def test_the_prompt_is_computed_once_and_every_sample_gets_a_first_token() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 6, n=3))
    outputs = step(scheduler, runner)
    assert runner.num_rows == 6
    assert [(o.sample_index, o.token_ids, o.num_cached_tokens) for o in outputs] == [
        (0, (6,), 0),
        (1, (1006,), None),
        (2, (2006,), None),
    ]
    outputs += [output for _ in range(3) for output in step(scheduler, runner)]
    assert not scheduler.has_work and scheduler.pool.num_held == 0
    assert [o.finish_reason for o in outputs[-3:]] == [FinishReason.LENGTH] * 3
    assert scheduler.totals.prompt_tokens_computed == 6


@pytest.mark.parametrize("length", range(1, 10))
def test_the_first_write_to_a_shared_block_copies_it_and_no_other(length: int) -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    scheduler.add(make_sequence("a", list(range(length)), n=3))
    step(scheduler, runner)
    lead, *siblings = samples_of(scheduler, "a")
    tables = [list(seq.block_ids) for seq in (lead, *siblings)]
    assert tables[1] == tables[2] == tables[0]
    assert scheduler.pool.num_held == len(tables[0])
    plan = scheduler.schedule()
    partial = length % 4 != 0
    assert len(runner.copies) == (2 if partial else 0)
    assert {source for source, _ in runner.copies} <= {tables[0][-1]}
    full = length // 4
    assert all(seq.block_ids[:full] == tables[0][:full] for seq in siblings)
    last = [seq.block_ids[-1] for seq in (lead, *siblings)]
    assert len(set(last)) == 3, "all write to blocks of their own"
    assert (tables[0][-1] in last) == partial, "the last owner writes in place"
    scheduler.commit(plan, runner.execute(plan))
    check_blocks(scheduler)
    run_to_end(scheduler, runner)
    assert scheduler.pool.num_held == 0


def test_samples_that_say_the_same_end_as_one_set_of_blocks() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    scheduler.copy_block = runner.copy_block
    scheduler.add(make_sequence("a", [1] * 6, max_tokens=9, n=3))
    while scheduler.has_work:
        plan = scheduler.schedule()
        runner.execute(plan)
        scheduler.commit(plan, [seq.num_tokens for seq in plan.sampled])
        check_blocks(scheduler)
        if len(samples_of(scheduler, "a") if scheduler.has_work else ()) == 3:
            full = samples_of(scheduler, "a")[0].num_computed_tokens // 4
            heads = {tuple(seq.block_ids[:full]) for seq in samples_of(scheduler, "a")}
            assert len(heads) == 1


@pytest.mark.parametrize("length", [6, 8])  # with 8 it holds a third block, for its first token
def test_a_pulled_prompt_is_reserved_once_and_forks_when_it_joins(length: int) -> None:
    scheduler, runner = make_scheduler(16), CountingRunner()
    seq = make_sequence("a", list(range(length)), max_tokens=5, n=3, is_pulled=True)
    scheduler.add(seq)
    (reserved,) = step(scheduler, runner)
    assert len(reserved.block_ids) == length // 4 + 1
    runner.fill(seq.block_ids, seq.token_ids, range(length))
    scheduler.end_pull("a")
    scheduler.join("a", 50, 51, 52)
    outputs = step(scheduler, runner)
    assert [(o.sample_index, o.token_ids) for o in outputs[:3]] == [
        (0, (50,)),
        (1, (51,)),
        (2, (52,)),
    ]
    assert scheduler.load().running_sequences == 3
    run_to_end(scheduler, runner)
    assert scheduler.totals.prompt_tokens_computed == 0 and scheduler.pool.num_held == 0


def test_admission_keeps_rows_and_blocks_for_siblings_to_come() -> None:
    scheduler, runner = (
        make_scheduler(8, max_num_seqs=4, max_num_batched_tokens=4),
        CountingRunner(),
    )
    scheduler.add(make_sequence("a", [1] * 9, max_tokens=2, n=3))  # 3 blocks, 2 to copy to
    scheduler.add(make_sequence("b", [2] * 5))
    scheduler.add(make_sequence("c", [3]))
    step(scheduler, runner)
    assert scheduler.load().running_sequences == 3, "siblings count before they run"
    assert scheduler.load().waiting_sequences == 2, "b's 2 blocks would leave none for a's samples"
    run_to_end(scheduler, runner)
    assert scheduler.totals.preemptions == 0


def test_samples_give_way_together_and_come_back_with_the_same_tokens() -> None:
    scheduler, runner = make_scheduler(10), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 7, max_tokens=16))
    scheduler.add(make_sequence("b", [2] * 7, max_tokens=9, n=3))
    tokens: dict[tuple[str, int], list[int]] = {}
    for _ in range(200):
        if not scheduler.has_work:
            break
        before = scheduler.totals.preemptions
        for output in step(scheduler, runner):
            tokens.setdefault((output.seq_id, output.sample_index), []).extend(output.token_ids)
        if scheduler.totals.preemptions > before:
            assert scheduler.totals.preemptions - before == 3
            assert scheduler.load().running_sequences == 1
    assert scheduler.totals.preemptions >= 3
    for sample in range(3):
        assert tokens["b", sample] == [1000 * sample + 7 + i for i in range(9)]


def test_a_stopped_sample_gives_back_its_own_blocks_and_the_others_go_on() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 6, max_tokens=9, n=3))
    for _ in range(4):
        step(scheduler, runner)
    scheduler.stop("a", {0, 2})
    check_blocks(scheduler)
    assert [seq.sample_index for seq in samples_of(scheduler, "a")] == [1]
    outputs = []
    while scheduler.has_work:
        outputs += step(scheduler, runner)
    assert {output.sample_index for output in outputs} == {1}
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    scheduler.stop("a", {1})
    assert scheduler.pool.num_held == 0


@pytest.mark.parametrize("when", range(4))
def test_a_request_that_is_released_leaves_nothing(when: int) -> None:
    scheduler, runner = make_scheduler(32, max_num_batched_tokens=4), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 6, n=4))
    for _ in range(when):
        step(scheduler, runner)
    scheduler.release("a")
    check_blocks(scheduler)
    assert scheduler.pool.num_held == 0 and not scheduler.has_work
    assert scheduler.num_active == 0


def test_a_lead_that_ends_with_its_first_token_leaves_its_siblings_their_prompt() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    seq = make_sequence("a", [1] * 6, max_tokens=5, n=2)
    seq.eos_token_ids = frozenset({6})
    scheduler.add(seq)
    outputs = step(scheduler, runner)
    assert [o.finish_reason for o in outputs] == [FinishReason.STOP, None]
    while scheduler.has_work:
        outputs += step(scheduler, runner)
    assert [t for o in outputs if o.sample_index == 1 for t in o.token_ids] == list(
        range(1006, 1011)
    )
    assert scheduler.pool.num_held == 0


def test_no_sample_starts_from_invalid_logits() -> None:
    scheduler = make_scheduler(32)
    scheduler.add(make_sequence("a", [1] * 6, n=2))
    plan = scheduler.schedule()
    error = InvalidLogits("nan")
    outputs = scheduler.commit(plan, [error, error])
    assert [output.error for output in outputs] == [error]
    assert not scheduler.has_work and scheduler.num_active == 0
    assert scheduler.pool.num_held == 0


def test_samples_that_can_never_run_at_once_are_refused_by_name() -> None:
    scheduler = make_scheduler(10, max_num_seqs=4)
    with pytest.raises(ValueError, match=r"^n must be 1 to 4 \(max_num_seqs\), got 5"):
        scheduler.add(make_sequence("a", [1] * 6, n=5))
    with pytest.raises(ValueError, match=r"^n 3 with max_tokens 12 .* 13 blocks, there are 10"):
        scheduler.add(make_sequence("a", [1] * 6, max_tokens=12, n=3))
    scheduler.add(make_sequence("a", [1] * 6, max_tokens=7, n=4))
    again = make_sequence("b", [1] * 6, n=2)
    again.token_ids.append(7)
    with pytest.raises(ValueError, match="^n must be 1, and no beam_search"):
        scheduler.add(again)


def test_what_sharing_saves_is_counted() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 6, max_tokens=3, n=3))
    step(scheduler, runner)
    assert scheduler.totals.shared_block_steps == 2 * 2
    assert scheduler.totals.live_slot_steps == 6
    step(scheduler, runner)
    assert scheduler.totals.shared_block_steps == 2 * 2 + 2
    assert scheduler.totals.live_slot_steps == 6 + 4 + 3 * 3


def test_a_sample_goes_on_alone_from_the_tokens_of_an_earlier_attempt(tmp_path: Path) -> None:
    engine = tiny_engine(tiny_llama(tmp_path / "m"), dtype="float32")
    sampling = SamplingParams(seed=2**64 - 1, temperature=1.5, max_tokens=20, ignore_eos=True, n=3)
    engine.scheduler.add(Sequence("all", [5] * 20, 20, sampling, GROUP))
    told: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while engine.scheduler.has_work:
        for output in engine.step():
            told[output.sample_index] += output.token_ids
    assert len({tuple(tokens) for tokens in told.values()}) == 3
    for index, tokens in told.items():
        alone = replace(sampling, n=1, seed=sample_seed(2**64 - 1, index))
        seq = Sequence(f"{index}", [5] * 20 + tokens[:7], 20, alone, GROUP)
        engine.scheduler.add(seq)
        while engine.scheduler.has_work:
            engine.step()
        assert seq.output_token_ids == tokens
