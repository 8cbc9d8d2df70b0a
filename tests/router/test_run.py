"""How a request's run ends, however much is unread and however early it is ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from octavo.inference.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_UNSPECIFIED
from octavo.internal.v1alpha1.worker_pb2 import (
    DecodeResponse,
    PrefillResponse,
    TokenDelta,
    WorkerRef,
)
from octavo.router.pace import Pace
from octavo.router.placement import Demand
from octavo.router.request import Request
from octavo.router.route import Route, RouteFinder
from octavo.router.run import Run
from octavo.router.worker import Leg
from octavo.rpc.errors import Expired, NoWorker, RequestError
from octavo.sampling_params import SamplingParams

NUM_TOKENS = 100
NO_PACE = Pace(0.0)


class TalkativeWorker:
    """A decode worker without a wire: says tokens when it is told to."""

    def __init__(self) -> None:
        self.ref = WorkerRef(worker_id="d")
        self.listener: Any = None
        self.is_cancelled = False

    def decode(self, request: object, timeout_s: float, listener: Any) -> "TalkativeWorker":
        self.listener = listener
        self.say(0, 1)
        return self

    def cancel(self) -> None:
        self.is_cancelled = True

    def say(self, begin: int, end: int) -> None:
        for index in range(begin, end):
            is_last = index + 1 == NUM_TOKENS
            reason = FINISH_REASON_LENGTH if is_last else FINISH_REASON_UNSPECIFIED
            delta = TokenDelta(first_index=index, token_ids=[index], finish_reason=reason)
            self.listener.take(DecodeResponse(tokens=delta))
            if is_last:
                self.listener.end(None)


class QuietPrefillWorker:
    """A prefill worker without a wire."""

    def __init__(self) -> None:
        self.ref = WorkerRef(worker_id="p")
        self.listener: Any = None

    def prefill(self, request: object, timeout_s: float, listener: Any) -> "QuietPrefillWorker":
        self.listener = listener
        return self

    def cancel(self) -> None: ...


class OneRoute(RouteFinder):
    """Leads to one decode worker, and perhaps to a prefill worker, once it may."""

    def __init__(self, worker: Any, prefill: Any = None) -> None:
        self.worker = worker
        self.prefill = prefill
        self.may_lead = asyncio.Event()
        self.may_lead.set()
        self.is_asked = asyncio.Event()

    @asynccontextmanager
    async def route(
        self, demand: Demand, prompt: Sequence[int], group_key: bytes
    ) -> AsyncIterator[Route]:
        self.is_asked.set()
        await self.may_lead.wait()
        prefill = None if self.prefill is None else Leg(self.prefill, 0, 0, 0.0)
        yield Route(prefill, Leg(self.worker, 0, 0, 0.0))


@pytest.fixture
def request_() -> Request:
    return Request(
        request_id="r",
        run_id="k",
        prompt_token_ids=[3],
        sampling=SamplingParams(seed=0),
        group_key=b"",
        include_text=True,
        include_token_ids=True,
        arrived_at=time.monotonic(),
    )


async def rest(tokens: AsyncIterator[Any]) -> tuple[list[int], RequestError | None]:
    """What is still read, and how it ends."""
    token_ids: list[int] = []
    try:
        async with asyncio.timeout(5):
            async for new in tokens:
                token_ids += new.token_ids
    except RequestError as error:
        return token_ids, error
    return token_ids, None


async def test_a_run_that_is_ended_before_it_began_says_so(request_: Request) -> None:
    worker = TalkativeWorker()
    run, error = Run(request_, OneRoute(worker), NO_PACE, 10.0), NoWorker("shutting down")
    run.fail(error)
    assert await rest(run.tokens()) == ([], error)
    assert worker.listener is None


async def test_a_run_that_is_ended_on_its_way_to_a_worker_calls_none(request_: Request) -> None:
    worker = TalkativeWorker()
    routes, error = OneRoute(worker), NoWorker("shutting down")
    routes.may_lead.clear()
    run = Run(request_, routes, NO_PACE, 10.0)
    reading = asyncio.create_task(rest(run.tokens()))
    await routes.is_asked.wait()
    run.fail(error)
    routes.may_lead.set()
    assert await reading == ([], error)
    assert worker.listener is None


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_run_that_is_ended_gives_what_is_there_first(
    request_: Request, has_ended: bool
) -> None:
    worker = TalkativeWorker()
    run, error = Run(request_, OneRoute(worker), NO_PACE, 10.0), NoWorker("shutting down")
    async with aclosing(run.tokens()) as tokens:
        assert (await anext(tokens)).token_ids == (0,)
        num_tokens = NUM_TOKENS if has_ended else NUM_TOKENS - 1
        worker.say(1, num_tokens)
        run.fail(error)
        assert worker.is_cancelled is not has_ended
        assert await rest(tokens) == (list(range(1, num_tokens)), None if has_ended else error)


async def test_a_late_reader_gets_the_waiting_tokens_at_once(request_: Request) -> None:
    worker = TalkativeWorker()
    async with aclosing(Run(request_, OneRoute(worker), NO_PACE, 10.0).tokens()) as tokens:
        await anext(tokens)
        worker.say(1, NUM_TOKENS)
        assert [len(new.token_ids) async for new in tokens] == [NUM_TOKENS - 1]


async def test_tokens_that_follow_closely_come_together(request_: Request) -> None:
    worker = TalkativeWorker()
    async with aclosing(Run(request_, OneRoute(worker), Pace(0.05), 10.0).tokens()) as tokens:
        assert (await anext(tokens)).token_ids == (0,)  # at once
        worker.say(1, 2)
        reading = asyncio.ensure_future(anext(tokens))
        await asyncio.sleep(0)
        assert not reading.done()
        worker.say(2, 3)
        assert (await reading).token_ids == (1, 2)


async def test_an_end_keeps_no_pace(request_: Request) -> None:
    worker = TalkativeWorker()
    async with aclosing(Run(request_, OneRoute(worker), Pace(3600.0), 10.0).tokens()) as tokens:
        await anext(tokens)
        worker.say(1, NUM_TOKENS - 1)
        worker.say(NUM_TOKENS - 1, NUM_TOKENS)
        assert await rest(tokens) == (list(range(1, NUM_TOKENS)), None)


async def test_a_late_prefill_token_does_not_cut_the_decode_worker_short(
    request_: Request,
) -> None:
    worker, prefill = TalkativeWorker(), QuietPrefillWorker()
    run = Run(request_, OneRoute(worker, prefill), NO_PACE, 10.0)
    async with aclosing(run.tokens()) as tokens:
        await anext(tokens)
        last = TokenDelta(first_index=1, token_ids=[1], finish_reason=FINISH_REASON_LENGTH)
        worker.listener.take(DecodeResponse(tokens=last))
        first = TokenDelta(first_index=0, token_ids=[0])
        prefill.listener.take(PrefillResponse(token=first))
        assert not worker.is_cancelled  # it has yet to say what it cost
        completed = DecodeResponse.Completed(transferred_blocks=7)
        worker.listener.take(DecodeResponse(completed=completed))
        worker.listener.end(None)
        prefill.listener.end(None)
        assert await rest(tokens) == ([1], None)
        assert run.report.transferred_blocks == 7


async def test_a_run_whose_time_is_over_gives_its_lease_back(request_: Request) -> None:
    worker = TalkativeWorker()
    token_ids, error = await rest(Run(request_, OneRoute(worker), NO_PACE, 0.05).tokens())
    assert token_ids == [0] and isinstance(error, Expired)
    assert worker.is_cancelled


async def test_a_reader_that_leaves_gives_the_lease_back(request_: Request) -> None:
    worker = TalkativeWorker()
    async with aclosing(Run(request_, OneRoute(worker), NO_PACE, 10.0).tokens()) as tokens:
        await anext(tokens)
    assert worker.is_cancelled
