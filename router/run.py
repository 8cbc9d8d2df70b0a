"""Runs one request: chooses workers, runs its legs, tries again with a prefill worker if need be.

    async with Run(...) as run:
        async for new in run:      <-- unread tokens <-- [task: find a route, Attempt, Attempt]
            ...

A reader gets all tokens that are there: where it is slower than the workers they come several at
a time. Unread are at most the request's output. Leaving the block ends the task and both legs.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.attempt import Attempt, NewTokens, joined
from octavo.router.failures import LocalTailTooLong
from octavo.router.placement import Demand
from octavo.router.report import RunReport
from octavo.router.request import Request
from octavo.router.route import RouteFinder
from octavo.router.scores import Scores
from octavo.rpc.errors import Expired, RequestError
from octavo.rpc.sampling import output_to_proto, sampling_to_proto

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2


class Run:
    """One request on its way through the workers; iterate to get its tokens."""

    def __init__(self, request: Request, routes: RouteFinder, timeout_s: float) -> None:
        self.report = RunReport(request.arrived_at, _scores_of(request))
        self._request = request
        self._routes = routes
        self._timeout_s = timeout_s
        self._unread: list[NewTokens] = []
        self._news = asyncio.Event()  # for a reader that waits
        self._has_ended = False
        self._attempt: Attempt | None = None
        self._is_stopped = False
        self._task: asyncio.Task[Exception | None] | None = None
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"run {self._request.request_id}")
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def __aiter__(self) -> AsyncIterator[NewTokens]:
        """Yield tokens in order; end with the request, or raise why it failed.

        Raises:
            RequestError: what the caller should see.
        """
        while self._unread or not self._has_ended:
            if self._unread:
                unread, self._unread = self._unread, []
                yield joined(unread)
            else:
                self._news.clear()
                await self._news.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """No more tokens are needed; what comes is dropped."""
        self._is_stopped = True
        if self._attempt is not None:
            await self._attempt.stop()

    def fail(self, error: RequestError) -> None:
        """End the request; its reader gets `error` after the tokens that are there."""
        if not self._has_ended:
            self._failure = error
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> Exception | None:
        """Run to the end; returns what went wrong."""
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                await self._attempts(deadline)
        except TimeoutError:
            return Expired(f"the request did not end within {self._timeout_s:.3f} s")
        except RequestError as error:
            return error
        except Exception as error:
            logger.exception("request %s failed on a defect", self._request.request_id)
            return error
        return None

    def _ended(self, task: "asyncio.Task[Exception | None]") -> None:
        # Here and not in the task, which may be cancelled before it began.
        if not task.cancelled():
            self._failure = task.result()
        self._has_ended = True
        self._news.set()

    async def _attempts(self, deadline: asyncio.Timeout) -> None:
        request_id = uuid.uuid4().hex  # the caller's id is never a key between our processes
        for number in range(1, MAX_ATTEMPTS + 1):
            try:
                await self._try(
                    worker_pb2.RequestKey(request_id=request_id, attempt=number), deadline
                )
                return
            except LocalTailTooLong:
                logger.debug("request %s: the tail is too long for decode alone", request_id)
        raise AssertionError("an attempt with a prefill worker cannot lack one")

    async def _try(self, key: worker_pb2.RequestKey, deadline: asyncio.Timeout) -> None:
        request = self._request
        demand = Demand(
            len(request.prompt_token_ids),
            request.sampling.max_tokens,
            may_prefill_locally=key.attempt == 1,
            may_reuse_prompt=request.sampling.prompt_logprobs is None,
        )
        async with self._routes.route(demand, request.prompt_token_ids, request.group_key) as route:
            self.report.begin(route)
            sequence = worker_pb2.SequenceSpec(
                key=key,
                prompt_token_ids=request.prompt_token_ids,
                sampling=sampling_to_proto(request.sampling),
                group_key=request.group_key,
                output=output_to_proto(request.sampling),
            )
            self._attempt = Attempt(route, sequence, self.report, self._emit)
            when = deadline.when()
            assert when is not None
            await self._attempt.run(when - asyncio.get_running_loop().time())

    def _emit(self, new: NewTokens) -> None:
        if not self._is_stopped:
            self._unread.append(new)
            self._news.set()


def _scores_of(request: Request) -> Scores | None:
    sampling = request.sampling
    if sampling.logprobs is None and sampling.prompt_logprobs is None:
        return None
    return Scores(
        len(request.prompt_token_ids),
        wants_tokens=sampling.logprobs is not None,
        wants_prompt=sampling.prompt_logprobs is not None,
    )
