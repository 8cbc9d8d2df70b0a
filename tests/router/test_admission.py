"""The queue's bound, counted in prompt tokens; in bytes before there are tokens."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.grammar.constraint import Constraint
from octavo.grammar.grammars import Grammars
from octavo.inference.v1.inference_pb2 import TokenizeRequest
from octavo.router import request as request_module
from octavo.router.adapter import AdapterFacts
from octavo.router.admission import MAX_RETRY_S, MIN_RETRY_S, Admission
from octavo.router.grammar import GrammarReader
from octavo.router.model import ServedModel
from octavo.router.request import RequestReader
from octavo.rpc.errors import Expired, NotFound, Overloaded


def no_adapter(name: str) -> AdapterFacts:
    raise NotFound(name)


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


def no_grammar(constraint: Constraint) -> str:
    raise AssertionError(f"{constraint} was not expected")


async def test_text_that_waits_for_the_tokenizer_is_bounded(
    served_model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "MAX_QUEUED_BYTES", 10)
    monkeypatch.setattr(request_module, "MAX_INLINE_BYTES", 0)
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(release.wait, 10)
        reader = RequestReader(
            served_model,
            threads,
            GrammarReader(served_model, Grammars(threads, no_grammar)),
            max_context_tokens=lambda: 64,
            group_key_of=str.encode,
            find_adapter=no_adapter,
        )
        first = asyncio.create_task(reader.tokenize(TokenizeRequest(text="long" * 20)))
        await asyncio.sleep(0)  # alone it may be larger than the bound
        with pytest.raises(Overloaded) as refused:
            await reader.tokenize(TokenizeRequest(text="more"))
        assert refused.value.retry_after_s == 1.0
        first.cancel()
        await asyncio.wait({first})
        second = asyncio.create_task(reader.tokenize(TokenizeRequest(text="more")))
        await asyncio.sleep(0)
        release.set()
        assert await second  # who left makes room


async def test_short_text_does_not_wait_behind_long_text(served_model: ServedModel) -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(release.wait, 10)
        reader = RequestReader(
            served_model,
            threads,
            GrammarReader(served_model, Grammars(threads, no_grammar)),
            max_context_tokens=lambda: 4096,
            group_key_of=str.encode,
            find_adapter=no_adapter,
        )
        long = asyncio.create_task(reader.tokenize(TokenizeRequest(text="long " * 1000)))
        assert await reader.tokenize(TokenizeRequest(text="short"))
        assert not long.done()
        release.set()
        assert await long
