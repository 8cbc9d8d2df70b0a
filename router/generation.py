"""One generation as its caller sees it: tokens become text, and text may end it.

Run --NewTokens--> TextOutput --text--> OutputParser --> Started, Delta, ..., Finished, Completed
 ^                     |                (tool calls)
 +---- stop -----------+  a stop string matched
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_STOP,
    FINISH_REASON_STOP_SEQUENCE,
    FINISH_REASON_TOOL_CALLS,
    FINISH_REASON_UNSPECIFIED,
    FinishReason,
)
from octavo.router.admission import Admission
from octavo.router.model import ServedModel
from octavo.router.report import RunReport
from octavo.router.request import Request
from octavo.router.route import RouteFinder
from octavo.router.run import Run
from octavo.rpc.errors import RequestError
from octavo.text.output import TextOutput
from octavo.text.tool_call_parser import output_parser
from octavo.text.tool_calls import ToolCall
from octavo.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a caller asked to hear of the prompt."""

    text: str
    token_ids: list[int]
    logprobs: TokenLogprobs | None  # of all but the first


@dataclass(frozen=True, slots=True)
class Started:
    """The first token is there."""

    num_prompt_tokens: int
    num_cached_tokens: int
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, tokens and tool calls; any may be empty."""

    text: str
    token_ids: tuple[int, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Why the output ended, and on which stop."""

    reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Last of all."""

    num_prompt_tokens: int
    num_output_tokens: int
    report: RunReport


Event = Started | Delta | Finished | Completed


class Generator:
    """Runs resolved requests."""

    def __init__(self, model: ServedModel, routes: RouteFinder, admission: Admission) -> None:
        self._model = model
        self._routes = routes
        self._admission = admission
        self._runs: set[Run] = set()

    @property
    def num_running(self) -> int:
        return len(self._runs)

    def end_all(self, error: RequestError) -> None:
        """End every request that runs now; each caller gets `error`."""
        for run in self._runs:
            run.fail(error)

    async def events(self, request: Request, timeout_s: float) -> AsyncGenerator[Event, None]:
        """Run a request; close the iterator to end it.

        Raises:
            RequestError: what the caller should see.
        """
        num_prompt = len(request.prompt_token_ids)
        markers = request.tools.format.markers if request.tools else ()
        output = TextOutput(
            self._model.tokenizer, request.prompt_token_ids, request.sampling, markers
        )
        parser = output_parser(request.tools)
        num_output = 0
        is_finished = False
        with self._admission.admit(num_prompt, timeout_s) as ticket:
            async with self._run(request, timeout_s) as run:
                async for new in run:
                    if is_finished:
                        continue  # only what the workers report is still awaited
                    if not num_output:
                        ticket.answered()
                        yield Started(
                            num_prompt, run.report.cached_prompt_tokens, self._prompt(request, run)
                        )
                    delta = output.push(new.token_ids)
                    logprobs = _logprobs(run, num_output, len(delta.token_ids))
                    num_output += len(delta.token_ids)
                    finished = _finished(output, new.finish_reason, delta.token_ids)
                    if finished is not None and delta.matched_stop is None:
                        delta = replace(delta, text=delta.text + output.finish())
                        finished = _finished(output, new.finish_reason, delta.token_ids)
                    parsed = parser.push(delta.text, is_last=finished is not None)
                    yield Delta(parsed.text, delta.token_ids, parsed.tool_calls, logprobs)
                    if finished is not None:
                        finished = _with_calls(finished, parser.num_calls)
                        is_finished = True
                        if new.finish_reason == FINISH_REASON_UNSPECIFIED:
                            await run.stop()  # the workers know nothing of stop strings
                        yield finished
                run.report.ended_at = time.monotonic()
                yield Completed(num_prompt, num_output, run.report)

    @staticmethod
    def _prompt(request: Request, run: Run) -> Prompt | None:
        logprobs = run.report.scores.prompt if run.report.scores is not None else None
        if not request.echo and logprobs is None:
            return None
        return Prompt(request.prompt_text, request.prompt_token_ids, logprobs)

    @asynccontextmanager
    async def _run(self, request: Request, timeout_s: float) -> AsyncIterator[Run]:
        async with Run(request, self._routes, timeout_s) as run:
            self._runs.add(run)
            try:
                yield run
            finally:
                self._runs.discard(run)


def _logprobs(run: Run, start: int, count: int) -> TokenLogprobs | None:
    """Those of the next tokens, if asked for."""
    scores = run.report.scores
    return None if scores is None else scores.tokens(start, start + count)


def _with_calls(finished: Finished, num_calls: int) -> Finished:
    """A model that ended its output after tool calls waits for their results."""
    if num_calls and finished.reason == FINISH_REASON_STOP:
        return replace(finished, reason=FINISH_REASON_TOOL_CALLS)
    return finished


def _finished(
    output: TextOutput, reason: FinishReason, token_ids: tuple[int, ...]
) -> Finished | None:
    """Whether the output ended here. A stop string counts before what ended the last token."""
    if output.matched_stop is not None:
        return Finished(FINISH_REASON_STOP_SEQUENCE, stop_text=output.matched_stop)
    if reason == FINISH_REASON_UNSPECIFIED:
        return None
    is_stop = reason == FINISH_REASON_STOP and bool(token_ids)
    return Finished(reason, stop_token_id=token_ids[-1] if is_stop else None)
