"""Runs one request: chooses workers, calls them, tries again with others if need be.

    async for new in run.tokens():      <-- Attempt <-- route

A request has no task of its own: its reader's task starts the attempts, and closing the iterator
ends them. Deadline and shutdown end an attempt from outside; then its reader is told why.
"""

import asyncio
import math
from collections.abc import AsyncGenerator

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.attempt import Attempt, NewTokens
from octavo.router.failures import LocalTailTooLong, WorkerDrains
from octavo.router.pace import Pace
from octavo.router.placement import Demand
from octavo.router.report import RunReport
from octavo.router.request import Request
from octavo.router.route import Route, RouteFinder
from octavo.router.scores import Scores
from octavo.rpc.errors import Expired, RequestError
from octavo.rpc.sampling import output_to_proto, sampling_to_proto

MAX_ATTEMPTS = 4  # a fleet that restarts one worker after another refuses once or twice


class Run:
    """One request on its way through the workers."""

    def __init__(self, request: Request, routes: RouteFinder, pace: Pace, timeout_s: float) -> None:
        self.report = RunReport(request.arrived_at, _scores_of(request))
        self._request = request
        self._routes = routes
        self._pace = pace
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + timeout_s
        self._news = asyncio.Event()
        self._took_at = -math.inf  # when its reader last took tokens
        self._waits_for_pace = False
        self._may_prefill_locally = True
        self._attempt: Attempt | None = None
        self._failure: RequestError | None = None  # why it was ended from outside

    @property
    def has_ended_well(self) -> bool:
        """Whether the workers have said all they will, and nothing failed."""
        attempt = self._attempt
        if attempt is None or self._failure is not None:
            return False
        return attempt.has_ended and attempt.failure is None

    async def tokens(self) -> AsyncGenerator[NewTokens, None]:
        """Yield tokens in order of each sample; end with the request, or raise why it failed.

        Raises:
            RequestError: what the caller should see.
        """
        timer = self._loop.call_at(self._ends_at, self._expire)
        try:
            for number in range(1, MAX_ATTEMPTS + 1):
                self._check()
                async with self._routes.route(
                    self._demand(), self._request.prompt_token_ids, self._request.group_key
                ) as route:
                    self._check()
                    attempt = self._attempt = self._new_attempt(route, number)
                    try:
                        attempt.open(self._ends_at - self._loop.time())
                        while not attempt.has_ended:
                            await self._news.wait()
                            self._news.clear()
                            for new in attempt.take():
                                self._took_at = self._loop.time()
                                yield new
                        for new in attempt.take():
                            yield new
                    finally:
                        attempt.close()
                self._check()
                if attempt.failure is None:
                    return
                if number == MAX_ATTEMPTS or not self._can_go_elsewhere(attempt.failure):
                    raise attempt.failure
                self._attempt = None
        finally:
            timer.cancel()

    def stop(self, sample: int) -> None:
        """No more tokens of a sample are needed; what comes is dropped."""
        if self._attempt is not None:
            self._attempt.stop(sample)

    def fail(self, error: RequestError) -> None:
        """End the request; its reader gets `error` after the tokens that are there."""
        attempt = self._attempt
        if self._failure is not None or (attempt is not None and attempt.has_ended):
            return
        self._failure = error
        if attempt is not None:
            attempt.close()

    def _expire(self) -> None:
        self.fail(Expired(f"the request did not end within {self._timeout_s:.3f} s"))

    def _can_go_elsewhere(self, failure: Exception) -> bool:
        """Whether workers refused before anything was sampled; the next route avoids why."""
        match failure:
            case LocalTailTooLong():
                self._may_prefill_locally = False
            case WorkerDrains():
                self._routes.drains(failure.worker)
            case _:
                return False
        return self._took_at == -math.inf

    def _demand(self) -> Demand:
        return Demand(
            len(self._request.prompt_token_ids),
            self._request.sampling.max_tokens,
            may_prefill_locally=self._may_prefill_locally,
            may_reuse_prompt=self._request.sampling.prompt_logprobs is None,
            num_samples=self._request.sampling.num_samples,
            adapter=self._request.adapter,
        )

    def _new_attempt(self, route: Route, number: int) -> Attempt:
        self.report.begin(route)
        sequence = worker_pb2.SequenceSpec(
            key=worker_pb2.RequestKey(request_id=self._request.run_id, attempt=number),
            prompt_token_ids=self._request.prompt_token_ids,
            sampling=sampling_to_proto(self._request.sampling),
            group_key=self._request.group_key,
            output=output_to_proto(self._request.sampling),
        )
        if self._request.adapter is not None:
            sequence.adapter.CopyFrom(self._request.adapter.to_proto())
        return Attempt(route, sequence, self.report, self._hear)

    def _hear(self) -> None:
        """There is news: let the reader look, at once unless it has just had some."""
        attempt = self._attempt
        if attempt is None or attempt.has_ended:
            self._news.set()
        elif not (self._waits_for_pace or self._news.is_set()):
            if self._loop.time() >= self._took_at + self._pace.interval_s:
                self._news.set()
            else:
                self._waits_for_pace = True
                self._pace.call_next(self._keep_pace)

    def _keep_pace(self) -> None:
        self._waits_for_pace = False
        self._news.set()

    def _check(self) -> None:
        """Raise why the request was ended from outside, if it was."""
        if self._failure is not None:
            raise self._failure


def _scores_of(request: Request) -> Scores | None:
    sampling = request.sampling
    wants_tokens = sampling.computed_logprobs is not None
    if not wants_tokens and sampling.prompt_logprobs is None:
        return None
    return Scores(
        len(request.prompt_token_ids),
        wants_tokens=wants_tokens,
        wants_prompt=sampling.prompt_logprobs is not None,
    )
