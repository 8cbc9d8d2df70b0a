"""How a request's run ends, however much is unread and however early it is ended."""

import asyncio
import time
from typing import Any

import pytest

from octavo.inference.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED
from octavo.router.attempt import NewTokens
from octavo.router.request import Request
from octavo.router.run import Run
from octavo.rpc.errors import NoWorker
from octavo.sampling_params import SamplingParams

NO_ROUTES: Any = None  # none is asked for
NUM_TOKENS = 100


class TalkativeRun(Run):
    """Emits tokens one after another, then goes on as told."""

    def __init__(self, request: Request, *, goes_on: bool) -> None:
        super().__init__(request, NO_ROUTES, 10.0)
        self.has_emitted = asyncio.Event()
        self._goes_on = goes_on

    async def _attempts(self, deadline: asyncio.Timeout) -> None:
        for token_id in range(NUM_TOKENS):
            self._emit(NewTokens((token_id,), FINISH_REASON_UNSPECIFIED))
        self.has_emitted.set()
        if self._goes_on:
            await asyncio.Event().wait()


@pytest.fixture
def request_() -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=[3],
        sampling=SamplingParams(seed=0),
        group_key=b"",
        include_text=True,
        include_token_ids=True,
        arrived_at=time.monotonic(),
    )


async def tokens_and_end(run: Run) -> tuple[list[int], str]:
    token_ids: list[int] = []
    try:
        async for new in run:
            token_ids += new.token_ids
    except NoWorker as error:
        return token_ids, str(error)
    return token_ids, ""


async def test_a_run_that_is_ended_before_it_began_says_so(request_: Request) -> None:
    async with asyncio.timeout(5), Run(request_, NO_ROUTES, 10.0) as run:
        run.fail(NoWorker("shutting down"))
        assert await tokens_and_end(run) == ([], "shutting down")


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_run_that_is_ended_gives_what_is_there_first(
    request_: Request, goes_on: bool
) -> None:
    async with asyncio.timeout(5), TalkativeRun(request_, goes_on=goes_on) as run:
        await run.has_emitted.wait()
        await asyncio.sleep(0)
        run.fail(NoWorker("shutting down"))
        # Without more to come it had ended well before.
        expected = (list(range(NUM_TOKENS)), "shutting down" if goes_on else "")
        assert await tokens_and_end(run) == expected


async def test_a_late_reader_gets_the_waiting_tokens_at_once(request_: Request) -> None:
    async with asyncio.timeout(5), TalkativeRun(request_, goes_on=False) as run:
        await run.has_emitted.wait()
        assert [len(new.token_ids) async for new in run] == [NUM_TOKENS]
