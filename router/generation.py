"""One generation as its caller sees it: each sample's tokens become text, and text may end it.

Run --NewTokens--> Sample --> Reply, Reply, ...
 ^                   |
 +------ stop -------+  a stop string matched
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from octavo.router.activity import Activity, Running
from octavo.router.admission import Admission
from octavo.router.model import ServedModel
from octavo.router.pace import Pace
from octavo.router.request import Request
from octavo.router.route import RouteFinder
from octavo.router.run import Run
from octavo.router.sample import Completed, Prompt, Reply, Sample, Started
from octavo.rpc.errors import RequestError


class Generator:
    """Runs resolved requests."""

    def __init__(
        self, model: ServedModel, routes: RouteFinder, admission: Admission, pace: Pace
    ) -> None:
        self._model = model
        self._routes = routes
        self.admission = admission
        self._pace = pace
        self.activity = Activity()

    @property
    def num_running(self) -> int:
        return len(self.activity.running)

    def end_all(self, error: RequestError) -> None:
        """End every request that runs now; each caller gets `error`."""
        for running in self.activity.running:
            running.run.fail(error)

    async def replies(self, request: Request, timeout_s: float) -> AsyncGenerator[Reply, None]:
        """Run a request; close the iterator to end it.

        Raises:
            RequestError: what the caller should see.
        """
        num_prompt = len(request.prompt_token_ids)
        num_samples = num_open = request.sampling.num_samples
        samples = [Sample(index, self._model, request) for index in range(num_samples)]
        has_started = False
        with (
            self.admission.admit(num_prompt, timeout_s) as ticket,
            self._running(request, timeout_s, samples) as run,
        ):
            async with aclosing(run.tokens()) as tokens:
                async for new in tokens:
                    sample = samples[new.sample]
                    if sample.is_finished:
                        continue  # only what the workers report is still awaited
                    reply = sample.take(new, run.report.scores)
                    if not has_started:
                        has_started = True
                        ticket.answered()
                        reply.started = Started(
                            num_prompt, run.report.cached_prompt_tokens, self._prompt(request, run)
                        )
                    if sample.has_stopped:
                        run.stop(new.sample)
                    num_open -= sample.is_finished
                    if not num_open and not sample.has_stopped and run.has_ended_well:
                        reply.completed = _completed(run, num_prompt, samples)
                    yield reply
            if run.report.ended_at is None:
                yield Reply(completed=_completed(run, num_prompt, samples))

    @staticmethod
    def _prompt(request: Request, run: Run) -> Prompt | None:
        logprobs = run.report.scores.prompt if run.report.scores is not None else None
        if not request.echo and logprobs is None:
            return None
        return Prompt(request.prompt_text, request.prompt_token_ids, logprobs)

    @contextmanager
    def _running(self, request: Request, timeout_s: float, samples: list[Sample]) -> Iterator[Run]:
        run = Run(request, self._routes, self._pace, timeout_s)
        with self.activity.count(Running(request, run, samples)):
            yield run


def _completed(run: Run, num_prompt_tokens: int, samples: list[Sample]) -> Completed:
    run.report.ended_at = time.monotonic()
    num_output_tokens = sum(sample.num_tokens for sample in samples)
    return Completed(num_prompt_tokens, num_output_tokens, run.report, len(samples))
