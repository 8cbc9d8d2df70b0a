"""Steps with guesses: the same tokens, the same blocks, and nothing taken from anybody."""

import random
from array import array
from dataclasses import replace

import pytest

from engine.counting import (
    CountingRunner,
    check_blocks,
    check_plan,
    make_scheduler,
    make_sequence,
    step,
)
from octavo.engine.draft_row import BatchRow
from octavo.engine.errors import InvalidLogits
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput
from octavo.engine.step_plan import StepPlan

PERIOD = 6


class RepeatingRunner(CountingRunner):
    """The next token is a function of the row's last two: it repeats itself, with surprises."""

    def draw(self, row: BatchRow) -> int:
        last = row.token_ids[-2:]
        surprise = row.num_tokens % 11 == 0
        return (last[0] * 5 + last[-1] * 3 + 1 + surprise) % 7


def looping(seq_id: str, num_prompt: int = 8, max_tokens: int = 40, **fields: bool) -> Sequence:
    prompt = [i % PERIOD for i in range(num_prompt)]
    return asking(make_sequence(seq_id, prompt, max_tokens, **fields))


def asking(seq: Sequence, wish: bool | None = True) -> Sequence:
    seq.sampling = replace(seq.sampling, prompt_lookup=wish)
    return seq


class LoopRunner(CountingRunner):
    """Goes on with the prompts of `looping`."""

    def draw(self, row: BatchRow) -> int:
        return row.num_tokens % PERIOD


def run(scheduler: Scheduler, runner: CountingRunner) -> dict[str, list[SequenceOutput]]:
    outputs: dict[str, list[SequenceOutput]] = {}
    for _ in range(2000):
        if not scheduler.has_work:
            return outputs
        for output in step(scheduler, runner):
            outputs.setdefault(output.seq_id, []).append(output)
    raise AssertionError("still at work")


def tokens_of(outputs: dict[str, list[SequenceOutput]]) -> dict[str, list[int]]:
    for several in outputs.values():
        assert [output.first_index for output in several if output.token_ids] == [
            sum(len(earlier.token_ids) for earlier in several[:i])
            for i, output in enumerate(several)
            if output.token_ids
        ]
    return {name: [t for o in several for t in o.token_ids] for name, several in outputs.items()}


def test_right_guesses_come_with_their_step_in_one_output() -> None:
    scheduler, runner = make_scheduler(32, max_draft_tokens=4), LoopRunner()
    scheduler.add(looping("a", max_tokens=12))
    outputs = run(scheduler, runner)["a"]
    assert tokens_of({"a": outputs}) == {"a": [(8 + i) % PERIOD for i in range(12)]}
    # The prompt's token, then 1 + 4 a step; the last token of all is never guessed.
    assert [len(output.token_ids) for output in outputs] == [1, 5, 5, 1]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert scheduler.totals.draft_tokens_proposed == scheduler.totals.draft_tokens_accepted == 8
    assert scheduler.totals.tokens_generated == 12
    assert scheduler.pool.num_held == 0


@pytest.mark.parametrize("seed", range(30))
def test_crowds_give_the_same_tokens_and_keep_every_invariant(seed: int) -> None:
    """Preempted, cached, pulled and released ones, in pools of all sizes."""
    rng = random.Random(seed)
    num_blocks, most = rng.randrange(10, 60), rng.choice([1, 3, 8])
    lengths = [(rng.randrange(1, 14), rng.randrange(1, 25)) for _ in range(8)]
    wishes = [rng.choice([True, None, False]) for _ in lengths]
    found = []
    for max_draft_tokens in (0, most):
        scheduler = make_scheduler(
            num_blocks, max_num_seqs=5, max_num_batched_tokens=24, max_draft_tokens=max_draft_tokens
        )
        for index, ((num_prompt, max_tokens), wish) in enumerate(zip(lengths, wishes, strict=True)):
            prompt = [(index // 2 + i) % 7 for i in range(num_prompt)]
            scheduler.add(asking(make_sequence(str(index), prompt, max_tokens), wish))
        found.append((tokens_of(run(scheduler, RepeatingRunner())), scheduler.totals))
        assert scheduler.pool.num_held == 0
    (plain, _), (guessed, totals) = found
    assert guessed == plain
    assert totals.draft_tokens_accepted <= totals.draft_tokens_proposed


def test_surprises_are_wrong_guesses_and_cost_nothing_but_rows() -> None:
    scheduler, runner = make_scheduler(64, max_draft_tokens=8), RepeatingRunner()
    scheduler.add(asking(make_sequence("a", [1, 2], 120)))
    run(scheduler, runner)
    totals = scheduler.totals
    assert 30 < totals.draft_tokens_accepted < totals.draft_tokens_proposed
    assert totals.steps < 90


def test_guesses_take_free_blocks_only_and_give_back_what_was_wrong() -> None:
    scheduler, runner = make_scheduler(5, max_draft_tokens=8), LoopRunner()
    a, b = looping("a", 8, max_tokens=8), make_sequence("b", list(range(50, 58)))
    scheduler.add(a)
    scheduler.add(b)
    step(scheduler, runner)  # both prompts: 2 blocks each, 1 free
    plan = scheduler.schedule()
    check_plan(scheduler, plan)
    # Each took a block for its newest token: a the last free one, and b gave way.
    assert (plan.decodes, scheduler.pool.num_free, scheduler.totals.preemptions) == ([a], 1, 1)
    assert len(plan.drafts) == 4 and len(a.block_ids) == 4
    runner.execute(plan)
    scheduler.commit(plan, [99] * len(plan.sampled))  # every guess is wrong
    check_blocks(scheduler)
    assert len(a.block_ids) == 3 and a.num_computed_tokens == 9


def test_an_exhausted_pool_still_guesses_within_the_last_block() -> None:
    scheduler, runner = make_scheduler(3, max_draft_tokens=8), LoopRunner()
    seq = looping("a", 8, max_tokens=4)
    scheduler.add(seq)
    step(scheduler, runner)
    plan = scheduler.schedule()
    assert len(seq.block_ids) == 3 and scheduler.pool.num_free == 0
    assert len(plan.drafts) == 2  # token 9 is the newest one, slots of 10 and 11 are left
    assert scheduler.totals.preemptions == 0


def test_only_drawn_tokens_fill_blocks_that_are_found() -> None:
    scheduler, runner = make_scheduler(32, max_draft_tokens=8), LoopRunner()
    scheduler.add(looping("a", 8, max_tokens=9))
    step(scheduler, runner)
    plan = scheduler.schedule()
    runner.execute(plan)
    # Of the guesses, which reach over a block border, the first two are right.
    drawn = [(9 + i) % PERIOD for i in range(len(plan.sampled))]
    drawn[2] = 77
    scheduler.commit(plan, drawn)
    check_blocks(scheduler)
    assert keyed_tokens(scheduler) == [[0, 1, 2, 3], [4, 5, 0, 1]]
    step(scheduler, runner)
    assert keyed_tokens(scheduler) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 77]]


def keyed_tokens(scheduler: Scheduler) -> list[list[int]]:
    entries = scheduler.prefix_cache._by_key.values()
    return [list(array("I", entry.token_ids)) for entry in entries]


def test_guesses_keep_to_the_steps_tokens_and_the_rows_there_are() -> None:
    scheduler = make_scheduler(64, max_num_seqs=2, max_num_batched_tokens=9, max_draft_tokens=8)
    runner = LoopRunner()
    for name in "ab":
        scheduler.add(looping(name))
    sizes = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        check_plan(scheduler, plan)
        sizes.append((len(plan.decodes), len(plan.drafts)))
        scheduler.commit(plan, runner.execute(plan))
    assert max(decodes + drafts for decodes, drafts in sizes) == 9
    assert (2, 7) in sizes


def test_a_request_may_ask_for_none_and_many_sequences_get_few() -> None:
    def proposed(num_seqs: int, wish: bool | None) -> int:
        scheduler = make_scheduler(
            16 * num_seqs, max_num_seqs=64, max_num_batched_tokens=512, max_draft_tokens=4
        )
        for index in range(num_seqs):
            scheduler.add(asking(looping(str(index), 9 + index % 3, max_tokens=6), wish))
        run(scheduler, LoopRunner())
        return scheduler.totals.draft_tokens_proposed

    assert proposed(1, False) == 0
    assert proposed(1, None) == proposed(1, True) == 4
    assert proposed(40, None) == 0  # 40 rows cost four times what reading the weights does
    assert proposed(40, True) > 80


def test_leased_sequences_are_left_alone() -> None:
    """Their blocks are read by others, who were told how far they got."""
    scheduler, runner = make_scheduler(32, max_draft_tokens=4), LoopRunner()
    scheduler.add(looping("a", is_leased=True, max_tokens=6))
    for _ in range(6):
        plan = scheduler.schedule()
        assert not plan.drafts
        scheduler.commit(plan, runner.execute(plan))
    scheduler.release("a")
    check_blocks(scheduler)


def test_an_end_among_right_guesses_ends_the_sequence_there() -> None:
    scheduler, runner = make_scheduler(32, max_draft_tokens=8), LoopRunner()
    seq = looping("a")
    seq.sampling = replace(seq.sampling, stop_token_ids=(5,))
    scheduler.add(seq)
    outputs = run(scheduler, runner)["a"]
    assert tokens_of({"a": outputs})["a"] == [2, 3, 4, 5]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert scheduler.pool.num_held == 0


def test_bad_logits_behind_a_right_guess_come_after_its_tokens() -> None:
    class BadRunner(LoopRunner):
        def execute(self, plan: StepPlan) -> list[int | InvalidLogits]:
            choices = super().execute(plan)
            return [
                InvalidLogits("not finite") if row.num_tokens == 12 else choice
                for row, choice in zip(plan.sampled, choices, strict=True)
            ]

    scheduler = make_scheduler(32, max_draft_tokens=8)
    scheduler.add(looping("a"))
    outputs = run(scheduler, BadRunner())["a"]
    assert tokens_of({"a": outputs})["a"] == [2, 3, 4, 5]
    assert isinstance(outputs[-1].error, InvalidLogits)
    assert not scheduler.has_work and scheduler.pool.num_held == 0
