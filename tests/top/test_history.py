"""Rates are differences of counters: of the same process, never below nothing."""

import pytest

from octavo.inference.v1 import fleet_pb2
from octavo.top.history import WINDOW_S, History
from octavo.top.snapshot import Snapshot
from top.moments import history_of, moment, worker


def decode(tokens: int, steps: int = 0, seconds: float = 0.0, epoch: int = 1) -> object:
    counters = {
        "tokens_generated": tokens,
        "computing_steps": steps,
        "step_seconds": seconds,
        "bytes_transferred": tokens * 1000,
    }
    return worker("decode-0", "decode", counters, epoch=epoch)


def test_rates_are_differences_over_the_time_between() -> None:
    history = history_of(
        moment([decode(100, 10, 1.0)], {"completion_tokens": 50, "requests": 4}),
        moment([decode(160, 30, 2.6)], {"completion_tokens": 110, "requests": 5}),
        interval_s=2.0,
    )
    assert history.last is not None
    assert history.last.per_s("completion_tokens") == 30
    assert history.last.per_s("requests") == 0.5
    rates = history.last.workers["decode-0"]
    assert rates.tokens_per_s == 30
    assert rates.step_s == pytest.approx(0.08)
    assert rates.busy == pytest.approx(0.8)
    assert rates.bytes_per_s == 30_000


def test_a_restarted_worker_begins_anew() -> None:
    history = history_of(moment([decode(1000)], {}), moment([decode(30, epoch=2)], {}))
    assert history.last is not None
    assert history.last.workers == {}, "what it did before is not known"
    history.add(Snapshot.of(moment([decode(50, epoch=2)], {}), 1002.0))
    assert history.last.workers["decode-0"].tokens_per_s == 20


def test_a_counter_that_went_back_is_no_negative_rate() -> None:
    history = history_of(
        moment([decode(1000, 100, 9.0)], {"prompt_tokens": 500}),
        moment([decode(10, 1, 0.1)], {"prompt_tokens": 20}),
    )
    assert history.last is not None
    rates = history.last.workers["decode-0"]
    assert (rates.tokens_per_s, rates.step_s, rates.busy, rates.bytes_per_s) == (0, None, 0, 0)
    assert history.last.per_s("prompt_tokens") == 0
    assert history.trend(lambda each: each.per_s("prompt_tokens"), 20)[-1] == 0


def test_a_restarted_router_begins_anew() -> None:
    before, after = moment([], {"requests": 10}), moment([], {"requests": 900})
    after.router.epoch = 8
    history = history_of(before, after)
    assert history.last is not None and history.last.per_s("requests") == 0


def test_a_worker_that_was_silent_for_a_while_is_measured_over_all_of_it() -> None:
    silent = worker("decode-0", "decode", None)
    history = history_of(moment([decode(0)], {}), moment([silent], {}), moment([decode(40)], {}))
    assert history.intervals[0].workers == {}
    assert history.intervals[1].workers["decode-0"].tokens_per_s == 20
    history.add(Snapshot.of(moment([silent], {}), 1003.0))
    assert history.intervals[2].workers["decode-0"].tokens_per_s == 20, "the last that is known"
    dead = worker("decode-0", "decode", None, state=fleet_pb2.WORKER_STATE_UNREACHABLE)
    history.add(Snapshot.of(moment([dead], {}), 1004.0))
    assert history.intervals[3].workers == {}


def test_shares_are_those_of_the_last_minute() -> None:
    old = {"prompt_tokens": 1000, "cached_prompt_tokens": 0, "transferred_prompt_tokens": 1000}
    new = {"prompt_tokens": 1200, "cached_prompt_tokens": 150, "transferred_prompt_tokens": 1050}
    shares, is_recent = history_of(moment([], old), moment([], new)).prompt_shares()
    assert is_recent
    assert shares["cached_prompt_tokens"] == 0.75 and shares["transferred_prompt_tokens"] == 0.25
    shares, is_recent = history_of(moment([], new), moment([], new)).prompt_shares()
    assert not is_recent and shares["cached_prompt_tokens"] == 0.125
    assert history_of(moment([], {})).prompt_shares()[0]["cached_prompt_tokens"] == 0


def test_a_trend_covers_a_minute_and_forgets_what_is_older() -> None:
    history = History()
    for second in range(200):
        total = 100 if second >= 190 else 0  # all of it 10 s before the end
        history.add(Snapshot.of(moment([], {"requests": total}), float(second)))
    trend = history.trend(lambda each: each.per_s("requests"), 60)
    assert [index for index, value in enumerate(trend) if value] == [50]
    assert trend[50] == pytest.approx(100)
    assert history.trend(lambda each: each.per_s("requests"), 6) == pytest.approx(
        [0, 0, 0, 0, 0, 10]
    )
    assert len(history.intervals) <= WINDOW_S + 2


def test_a_minute_that_has_just_begun_is_blank_before() -> None:
    history = history_of(moment([], {}), moment([], {"requests": 3}))
    trend = history.trend(lambda each: each.per_s("requests"), 60)
    assert trend[:59] == [None] * 59 and trend[59] == 3
