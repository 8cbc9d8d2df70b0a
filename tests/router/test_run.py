"""How a request's run ends, however full its queue is and however early it is ended."""

import asyncio
import time
from typing import Any

import pytest

from octavo.inference.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED
from octavo.router.attempt import NewTokens
from octavo.router.request import Request
from octavo.router.run import MAX_UNREAD, Run
from octavo.rpc.errors import NoWorker
from octavo.sampling_params import SamplingParams

NO_ROUTES: Any = None  # none is asked for


class TalkativeRun(Run):
    """Emits as many tokens as its reader may leave unread, then `extra` more."""

    extra = 0

    async def _attempts(self, deadline: asyncio.Timeout) -> None:
        for token_id in range(MAX_UNREAD + self.extra):
            await self._emit(NewTokens((token_id,), FINISH_REASON_UNSPECIFIED))


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


async def tokens_and_end(run: Run) -> tuple[int, str]:
    count = 0
    try:
        async for _ in run:
            count += 1
    except NoWorker as error:
        return count, str(error)
    return count, ""


async def test_a_run_that_is_ended_before_it_began_says_so(request_: Request) -> None:
    async with asyncio.timeout(5), Run(request_, NO_ROUTES, 10.0) as run:
        run.fail(NoWorker("shutting down"))
        assert await tokens_and_end(run) == (0, "shutting down")


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_run_with_a_full_queue_ends_after_what_is_there(
    request_: Request, extra: int
) -> None:
    async with asyncio.timeout(5), TalkativeRun(request_, NO_ROUTES, 10.0) as run:
        run.extra = extra
        while run.num_unread < MAX_UNREAD:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        run.fail(NoWorker("shutting down"))
        # Without more to come it had ended well before.
        assert await tokens_and_end(run) == (MAX_UNREAD, "shutting down" if extra else "")


async def test_a_run_waits_for_its_reader(request_: Request) -> None:
    async with asyncio.timeout(5), TalkativeRun(request_, NO_ROUTES, 10.0) as run:
        run.extra = 10
        async for _ in run:
            assert run.num_unread <= MAX_UNREAD
            await asyncio.sleep(0)
