"""What a request's workers told of it, when an attempt failed and another one took over."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router import report as report_module
from octavo.router.report import Moved, RunReport
from octavo.router.route import Route
from octavo.rpc.durations import duration


class Clock:
    """A time that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(report_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def leg() -> Any:
    return SimpleNamespace(worker=SimpleNamespace(facts=SimpleNamespace(block_size=16)))


def both() -> Route:
    return Route(leg(), leg())


def prefill_started(cached: int) -> worker_pb2.PrefillResponse.Started:
    return worker_pb2.PrefillResponse.Started(cached_prompt_tokens=cached)


def decode_started(cached: int) -> worker_pb2.DecodeResponse.Started:
    return worker_pb2.DecodeResponse.Started(cached_prompt_tokens=cached)


def prefill_completed(seconds: float, blocks: int) -> worker_pb2.PrefillResponse.Completed:
    return worker_pb2.PrefillResponse.Completed(
        prefill=duration(seconds), transferred_blocks=blocks
    )


def decode_completed(seconds: float, blocks: int) -> worker_pb2.DecodeResponse.Completed:
    return worker_pb2.DecodeResponse.Completed(
        prefill=duration(seconds), transfer=duration(seconds), transferred_blocks=blocks
    )


def test_a_worker_that_died_before_the_first_token_counts_for_nothing(clock: Clock) -> None:
    report = RunReport(arrived_at=100.0)
    report.begin(both())
    clock.now = 101.0
    report.prefill_started(prefill_started(48))
    report.decode_started(decode_started(64))
    report.prefill_completed(prefill_completed(9.0, 7))
    report.begin(both())
    clock.now = 103.0
    report.prefill_started(prefill_started(16))
    report.decode_started(decode_started(32))
    clock.now = 104.0
    report.token_came()
    report.prefill_completed(prefill_completed(0.5, 4))
    report.decode_completed(decode_completed(0.25, 4))
    assert (report.queue_s, report.prefill_s, report.first_token_s) == (3.0, 0.5, 4.0)
    assert report.transfer_s == 0.25
    assert report.cached_prompt_tokens == 16
    assert report.moved(90, 5) == Moved(16, 32, 58)  # 4 blocks, of which the last is partly full


def test_a_first_token_that_was_seen_keeps_its_times_when_a_worker_dies_later(
    clock: Clock,
) -> None:
    report = RunReport(arrived_at=100.0)
    report.begin(both())
    clock.now = 101.0
    report.prefill_started(prefill_started(0))
    clock.now = 102.0
    report.token_came()
    report.begin(both())
    clock.now = 150.0
    report.prefill_started(prefill_started(80))
    report.token_came()
    report.prefill_completed(prefill_completed(20.0, 0))
    report.decode_started(decode_started(80))
    report.decode_completed(decode_completed(0.125, 1))
    assert (report.queue_s, report.prefill_s, report.first_token_s) == (1.0, 1.0, 2.0)
    # What was found and moved is the last attempt's, which served the rest.
    assert report.moved(90, 5) == Moved(80, 80, 10)
    assert report.transfer_s == 0.125


def test_a_decode_worker_that_refused_to_compute_the_prompt_counts_for_nothing(
    clock: Clock,
) -> None:
    report = RunReport(arrived_at=100.0)
    report.begin(Route(None, cast(Any, leg())))
    report.begin(both())
    report.prefill_started(prefill_started(16))
    report.decode_started(decode_started(0))
    report.token_came()
    assert report.moved(90, 1) == Moved(16, 0, 0)
    report.prefill_completed(prefill_completed(0.5, 6))
    assert report.moved(90, 2) == Moved(16, 0, 90)
    assert report.cached_prompt_tokens == 16


def test_a_decode_worker_alone_found_and_computed_the_prompt_itself(clock: Clock) -> None:
    report = RunReport(arrived_at=100.0)
    report.begin(Route(None, cast(Any, leg())))
    clock.now = 101.0
    report.decode_started(decode_started(32))
    report.token_came()
    report.decode_completed(decode_completed(0.5, 0))
    assert report.cached_prompt_tokens == 32
    assert report.moved(41, 1) == report.moved(41, 7) == Moved(0, 32, 0)
    assert (report.queue_s, report.prefill_s, report.transfer_s) == (1.0, 0.5, None)
