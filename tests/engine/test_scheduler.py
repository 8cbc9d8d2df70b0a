"""Who runs when, with which blocks: admission, chunks, decoding, joining and release."""

import pytest

from engine.counting import CountingRunner, check_blocks, make_scheduler, make_sequence, step
from octavo.engine.errors import InvalidLogits
from octavo.engine.sequence import FinishReason, Status


def test_a_sequence_runs_to_its_length_and_gives_everything_back() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 6, max_tokens=3))
    outputs = [step(scheduler, runner)[0] for _ in range(3)]
    assert [output.token_ids for output in outputs] == [(6,), (7,), (8,)]
    assert [output.first_index for output in outputs] == [0, 1, 2]
    assert [output.num_cached_tokens for output in outputs] == [0, None, None]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert not scheduler.has_work
    assert scheduler.pool.num_held == 0


def test_a_block_is_allocated_only_when_the_last_one_is_full() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    seq = make_sequence("a", [1] * 4, max_tokens=6)
    scheduler.add(seq)
    num_blocks = []
    while scheduler.has_work:
        step(scheduler, runner)
        num_blocks.append(len(seq.block_ids))
    assert num_blocks == [1, 2, 2, 2, 2, 0]


def test_decode_rows_come_first_and_chunks_share_the_rest_of_the_budget() -> None:
    scheduler, runner = make_scheduler(32, max_num_batched_tokens=8), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 3, max_tokens=9))
    step(scheduler, runner)
    scheduler.add(make_sequence("b", [2] * 12))
    scheduler.add(make_sequence("c", [3] * 5))
    plans = []
    for _ in range(3):
        plan = scheduler.schedule()
        plans.append(
            ([s.seq_id for s in plan.decodes], [(c.seq.seq_id, c.num_tokens) for c in plan.chunks])
        )
        scheduler.commit(plan, runner.execute(plan))
    assert plans == [
        (["a"], [("b", 7)]),
        (["a"], [("b", 5), ("c", 2)]),
        (["a", "b"], [("c", 3)]),
    ]


def test_only_the_chunk_that_ends_a_prompt_is_sampled() -> None:
    scheduler, runner = make_scheduler(8, max_num_batched_tokens=4), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 10))
    token_ids = [step(scheduler, runner) for _ in range(3)]
    assert [[o.token_ids for o in outputs] for outputs in token_ids] == [[()], [], [(10,)]]


@pytest.mark.parametrize("length", range(1, 14))
def test_a_cached_prompt_is_computed_from_its_last_block_border(length: int) -> None:
    """C02: at least one token is computed, and nothing is lost on the second send."""
    scheduler, runner = make_scheduler(16), CountingRunner()
    cached = []
    for index, extra in enumerate((0, 0, 0, 1, 4)):
        scheduler.add(make_sequence(str(index), list(range(length + extra)), max_tokens=1))
        cached.append(step(scheduler, runner)[0].num_cached_tokens)
    assert cached == [0, (length - 1) // 4 * 4, (length - 1) // 4 * 4, length // 4 * 4, cached[4]]
    assert cached[4] == (length + 1) // 4 * 4 or cached[4] == length // 4 * 4


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    scheduler, runner = make_scheduler(16), CountingRunner()
    first = make_sequence("a", [0] * 3, max_tokens=10)
    scheduler.add(first)
    while scheduler.has_work:
        step(scheduler, runner)
    scheduler.add(make_sequence("b", [*first.token_ids, 5]))
    assert step(scheduler, runner)[0].num_cached_tokens == 12


def test_equal_prompts_of_one_batch_end_as_one_set_of_blocks() -> None:
    scheduler, runner = make_scheduler(32), CountingRunner()
    seqs = [make_sequence(str(i), [7] * 8) for i in range(4)]
    for seq in seqs:
        scheduler.add(seq)
    step(scheduler, runner)
    assert all(seq.block_ids[:2] == seqs[0].block_ids[:2] for seq in seqs)
    assert scheduler.pool.num_held == 2


def test_blocks_are_found_only_once_they_are_computed() -> None:
    """C04: a prompt cancelled in its second chunk leaves its first chunk's blocks, no others."""
    scheduler, runner = make_scheduler(16, max_num_batched_tokens=8), CountingRunner()
    scheduler.add(make_sequence("a", list(range(15))))
    step(scheduler, runner)
    scheduler.release("a")
    scheduler.add(make_sequence("b", list(range(15))))
    assert step(scheduler, runner)[0].num_cached_tokens == 8
    scheduler.release("b")
    scheduler.add(make_sequence("c", list(range(100, 115))))
    scheduler.release("c")
    scheduler.add(make_sequence("d", list(range(100, 115))))
    assert step(scheduler, runner)[0].num_cached_tokens == 0


def test_admission_is_first_come_and_leaves_a_block_per_running_sequence() -> None:
    scheduler, runner = make_scheduler(4), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 7, max_tokens=3))
    step(scheduler, runner)
    scheduler.add(make_sequence("big", [2] * 8))
    scheduler.add(make_sequence("small", [3]))
    # Two blocks are free, and big needs two: then nothing would be left for a.
    assert {output.seq_id for output in step(scheduler, runner)} == {"a"}
    assert scheduler.load().waiting_sequences == 2
    assert {output.seq_id for output in step(scheduler, runner)} == {"a"}
    assert {output.seq_id for output in step(scheduler, runner)} == {"big", "small"}


def test_what_can_never_fit_is_refused_and_names_the_limit() -> None:
    scheduler = make_scheduler(4)
    with pytest.raises(ValueError, match="the context of 16"):
        scheduler.add(make_sequence("a", [1] * 13, max_tokens=4))
    with pytest.raises(ValueError, match="num_prompt_tokens must be 1"):
        scheduler.add(make_sequence("a", []))
    scheduler.add(make_sequence("a", [1] * 12, max_tokens=4))
    with pytest.raises(ValueError, match="already"):
        scheduler.add(make_sequence("a", [1]))


def test_a_lone_sequence_may_use_the_whole_pool() -> None:
    scheduler, runner = make_scheduler(4), CountingRunner()
    seq = make_sequence("a", [1] * 2, max_tokens=14)
    scheduler.add(seq)
    while scheduler.has_work:
        step(scheduler, runner)
    assert seq.num_output_tokens == 14
    assert seq.num_preemptions == 0


def test_output_tokens_of_an_earlier_attempt_are_never_sampled_again() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    seq = make_sequence("a", [1] * 3, max_tokens=4)
    seq.token_ids += [90, 91]
    scheduler.add(seq)
    outputs = [step(scheduler, runner)[0] for _ in range(2)]
    assert [(o.first_index, o.token_ids) for o in outputs] == [(2, (5,)), (3, (6,))]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_pulled_sequence_reserves_first_and_runs_when_it_joins(length: int) -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    seq = make_sequence("a", list(range(length)), is_pulled=True)
    scheduler.add(seq)
    (reserved,) = step(scheduler, runner)
    assert seq.status is Status.FILLING
    assert len(reserved.block_ids) == length // 4 + 1  # the prompt and a slot for the first token
    assert reserved.num_cached_tokens == 0
    assert runner.num_rows == 0
    runner.fill(seq.block_ids, seq.token_ids, range(length))
    scheduler.end_pull("a")
    scheduler.join("a", 50)
    joined, *more = step(scheduler, runner)
    assert (joined.token_ids, joined.first_index) == ((50,), 0)
    assert joined.num_computed_tokens == length
    assert [output.token_ids for output in more] == [(length + 1,)]


def test_a_pulled_prompt_that_is_all_cached_takes_its_last_block_too() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    scheduler.add(make_sequence("a", list(range(8)), max_tokens=1))
    step(scheduler, runner)
    scheduler.add(make_sequence("b", list(range(8)), is_pulled=True))
    (reserved,) = step(scheduler, runner)
    assert reserved.num_cached_tokens == 8
    assert len(reserved.block_ids) == 3


def test_blocks_under_a_copy_stay_held_until_the_copy_has_ended() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    scheduler.add(make_sequence("a", list(range(7)), is_pulled=True))
    (reserved,) = step(scheduler, runner)
    scheduler.release("a")
    assert scheduler.pool.num_held == len(reserved.block_ids) == 2
    scheduler.join("a", 5)  # too late, and harmless
    scheduler.end_pull("a")
    scheduler.end_pull("a")
    assert scheduler.pool.num_held == 0
    check_blocks(scheduler)


def test_a_first_token_that_ends_the_sequence_is_told_and_frees_the_pulled_blocks() -> None:
    """C30: EOS first costs no decode step."""
    scheduler, runner = make_scheduler(8), CountingRunner()
    seq = make_sequence("a", list(range(7)), is_pulled=True)
    seq.eos_token_ids = frozenset({2})
    scheduler.add(seq)
    step(scheduler, runner)
    scheduler.end_pull("a")
    scheduler.join("a", 2)
    (output,) = step(scheduler, runner)
    assert (output.token_ids, output.finish_reason) == ((2,), FinishReason.STOP)
    assert runner.num_rows == 0
    assert scheduler.pool.num_held == 0
    assert not scheduler.has_work


def test_only_filling_sequences_join() -> None:
    scheduler = make_scheduler(8)
    scheduler.add(make_sequence("a", [1]))
    with pytest.raises(ValueError, match="WAITING"):
        scheduler.join("a", 1)


def test_a_leased_sequence_shows_every_chunk_and_keeps_its_blocks() -> None:
    scheduler, runner = make_scheduler(8, max_num_batched_tokens=4), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 10, max_tokens=1, is_leased=True))
    outputs = [output for _ in range(3) for output in step(scheduler, runner)]
    assert [output.num_computed_tokens for output in outputs] == [0, 4, 8, 10]
    assert [output.num_cached_tokens for output in outputs] == [0, None, None, None]
    assert all(len(output.block_ids) == 3 for output in outputs)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert not scheduler.has_work
    assert scheduler.pool.num_held == 3
    scheduler.release("a")
    assert scheduler.pool.num_held == 0


def test_a_duplicate_that_a_lease_has_shown_stays_until_its_release() -> None:
    scheduler, runner = make_scheduler(16, max_num_batched_tokens=12), CountingRunner()
    first = make_sequence("a", [1] * 9, max_tokens=9)
    leased = make_sequence("b", [1] * 8, max_tokens=1, is_leased=True)
    scheduler.add(first)
    scheduler.add(leased)
    shown = step(scheduler, runner)[-1]
    assert shown.num_computed_tokens == 3  # block 0 is shown three quarters written
    ended = step(scheduler, runner)[1]
    assert list(ended.block_ids) == first.block_ids[:2]
    owners = [scheduler.pool.num_owners(block_id) for block_id in shown.block_ids]
    assert owners == [1, 0]  # a reader may be in the first, nobody heard of the second
    scheduler.release("b")
    assert scheduler.pool.num_owners(shown.block_ids[0]) == 0


def test_invalid_logits_end_their_own_sequence_and_no_other() -> None:
    scheduler = make_scheduler(8)
    scheduler.add(make_sequence("bad", [1] * 4))
    scheduler.add(make_sequence("good", [2] * 4))
    plan = scheduler.schedule()
    error = InvalidLogits("the greatest logit of sequence bad is nan")
    bad, good = scheduler.commit(plan, [error, 9])
    assert bad.error is error
    assert good.token_ids == (9,)
    assert scheduler.load().running_sequences == 1
    assert len(scheduler.prefix_cache) == 1  # only what the good one computed
    check_blocks(scheduler)


def test_load_and_counters_say_what_happened() -> None:
    scheduler, runner = make_scheduler(16, max_num_batched_tokens=8), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 12, max_tokens=2))
    scheduler.add(make_sequence("b", [2] * 5, max_tokens=2))
    assert scheduler.load().waiting_prefill_tokens == 17
    step(scheduler, runner)
    assert scheduler.load().waiting_prefill_tokens == 9
    while scheduler.has_work:
        step(scheduler, runner)
    totals = scheduler.totals
    assert (totals.requests, totals.prompt_tokens_computed, totals.tokens_generated) == (2, 17, 4)
    assert totals.steps == scheduler.load().steps
    assert 0 < totals.live_slot_steps <= totals.allocated_slot_steps


def test_steps_that_compute_nothing_leave_the_utilisation_alone() -> None:
    scheduler, runner = make_scheduler(16), CountingRunner()
    scheduler.add(make_sequence("a", [1] * 9, is_pulled=True))
    for _ in range(3):
        step(scheduler, runner)
    assert scheduler.totals.steps == 3
    assert scheduler.totals.allocated_slot_steps == 0


def test_a_shared_block_counts_once_in_the_utilisation() -> None:
    scheduler, runner = make_scheduler(16), CountingRunner()
    for seq_id in "abcd":
        scheduler.add(make_sequence(seq_id, [7] * 8 + [ord(seq_id)]))
    step(scheduler, runner)
    assert scheduler.totals.allocated_slot_steps == (2 + 4) * 4
    assert scheduler.totals.live_slot_steps == 2 * 4 + 4
