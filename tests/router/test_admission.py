"""The queue's bound, counted in prompt tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.router.admission import MAX_RETRY_S, MIN_RETRY_S, Admission
from octavo.rpc.errors import Expired, Overloaded


def test_overload_is_refused_at_once_and_says_when_to_come_back() -> None:
    admission = Admission(100)
    with admission.admit(60, None), admission.admit(40, None):
        with (
            pytest.raises(Overloaded, match="max_queued_tokens 100") as refused,
            admission.admit(1, None),
        ):
            pass
        assert refused.value.retry_after_s is not None
        assert MIN_RETRY_S <= refused.value.retry_after_s <= MAX_RETRY_S
        assert admission.num_queued_tokens == 100
    assert admission.num_queued_tokens == 0


def test_first_token_makes_room_while_the_request_goes_on() -> None:
    admission = Admission(100)
    with admission.admit(100, None) as ticket:
        ticket.answered()
        with admission.admit(100, None):
            assert admission.num_queued_tokens == 100


def test_prompt_beyond_the_bound_runs_while_nothing_waits() -> None:
    admission = Admission(100)
    with admission.admit(500, None), pytest.raises(Overloaded), admission.admit(1, None):
        pass


def test_passed_deadline_never_runs() -> None:
    admission = Admission(100)
    with pytest.raises(Expired), admission.admit(1, 0.0):
        pass
    assert admission.num_queued_tokens == 0


def test_retry_hint_follows_the_waits() -> None:
    now = 0.0
    admission = Admission(100, clock=lambda: now)
    for _ in range(50):
        with admission.admit(100, None):
            now += 7.0
    with admission.admit(100, None), pytest.raises(Overloaded) as refused, admission.admit(1, None):
        pass
    assert refused.value.retry_after_s == pytest.approx(7.0, abs=0.1)


@given(st.lists(st.integers(1, 60), max_size=30), st.randoms())
def test_count_is_the_sum_of_those_that_wait(sizes: list[int], draw: object) -> None:
    admission = Admission(100)
    held: list[tuple[object, int]] = []
    for size in sizes:
        manager = admission.admit(size, None)
        try:
            manager.__enter__()
        except Overloaded:
            assert sum(s for _, s in held) + size > 100
        else:
            held.append((manager, size))
        assert admission.num_queued_tokens == sum(s for _, s in held)
        if len(held) > 2:
            manager, _ = held.pop(draw.randrange(len(held)))  # type: ignore[attr-defined]
            manager.__exit__(None, None, None)  # type: ignore[attr-defined]
