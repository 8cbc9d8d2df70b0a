"""One generation as its caller sees it: tokens become text, and text may end it.

Run --NewTokens--> TextOutput --text--> OutputParser --> Reply, Reply, ...
 ^                     |                (tool calls)
 +---- stop -----------+  a stop string matched
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_STOP,
    FINISH_REASON_STOP_SEQUENCE,
    FINISH_REASON_TOOL_CALLS,
    FINISH_REASON_UNSPECIFIED,
    FinishReason,
)
from octavo.router.admission import Admission
from octavo.router.model import ServedModel
from octavo.router.pace import Pace
from octavo.router.report import RunReport
from octavo.router.request import Request
from octavo.router.route import RouteFinder
from octavo.router.run import Run
from octavo.rpc.errors import RequestError
from octavo.text.output import TextOutput
from octavo.text.tool_call_parser import output_parser
from octavo.text.tool_calls import ToolCall
from octavo.token_logprobs import TokenLogprobs


@dataclass(slots=True)
class Prompt:
    """What a caller asked to hear of the prompt."""

    text: str
    token_ids: list[int]
    logprobs: TokenLogprobs | None  # of all but the first


@dataclass(slots=True)  # not frozen: many are made
class Started:
    """The first token is there."""

    num_prompt_tokens: int
    num_cached_tokens: int
    prompt: Prompt | None = None


@dataclass(slots=True)
class Finished:
    """Why the output ended, and on which stop."""

    reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None


@dataclass(slots=True)
class Completed:
    """Last of all."""

    num_prompt_tokens: int
    num_output_tokens: int
    report: RunReport


@dataclass(slots=True)
class Reply:
    """Everything that is new at one time; its parts happened in this order."""

    started: Started | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: TokenLogprobs | None = None  # of token_ids
    finished: Finished | None = None
    completed: Completed | None = None


class Generator:
    """Runs resolved requests."""

    def __init__(
        self, model: ServedModel, routes: RouteFinder, admission: Admission, pace: Pace
    ) -> None:
        self._model = model
        self._routes = routes
        self._admission = admission
        self._pace = pace
        self._runs: set[Run] = set()

    @property
    def num_running(self) -> int:
        return len(self._runs)

    def end_all(self, error: RequestError) -> None:
        """End every request that runs now; each caller gets `error`."""
        for run in self._runs:
            run.fail(error)

    async def replies(self, request: Request, timeout_s: float) -> AsyncGenerator[Reply, None]:
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
        with (
            self._admission.admit(num_prompt, timeout_s) as ticket,
            self._running(request, timeout_s) as run,
        ):
            async with aclosing(run.tokens()) as tokens:
                async for new in tokens:
                    if is_finished:
                        continue  # only what the workers report is still awaited
                    reply = Reply()
                    if not num_output:
                        ticket.answered()
                        reply.started = Started(
                            num_prompt, run.report.cached_prompt_tokens, self._prompt(request, run)
                        )
                    delta = output.push(new.token_ids)
                    if run.report.scores is not None:
                        stop = num_output + len(delta.token_ids)
                        reply.logprobs = run.report.scores.tokens(num_output, stop)
                    num_output += len(delta.token_ids)
                    reply.text, reply.token_ids = delta.text, delta.token_ids
                    finished = _finished(output, new.finish_reason, delta.token_ids)
                    if finished is not None and delta.matched_stop is None:
                        reply.text += output.finish()
                        finished = _finished(output, new.finish_reason, delta.token_ids)
                    parsed = parser.push(reply.text, is_last=finished is not None)
                    reply.text, reply.tool_calls = parsed.text, parsed.tool_calls
                    reply.finished = _with_calls(finished, parser.num_calls)
                    if finished is not None:
                        is_finished = True
                        if new.finish_reason == FINISH_REASON_UNSPECIFIED:
                            run.stop()  # the workers know nothing of stop strings
                        elif run.has_ended_well:
                            reply.completed = _completed(run, num_prompt, num_output)
                    yield reply
            if run.report.ended_at is None:
                yield Reply(completed=_completed(run, num_prompt, num_output))

    @staticmethod
    def _prompt(request: Request, run: Run) -> Prompt | None:
        logprobs = run.report.scores.prompt if run.report.scores is not None else None
        if not request.echo and logprobs is None:
            return None
        return Prompt(request.prompt_text, request.prompt_token_ids, logprobs)

    @contextmanager
    def _running(self, request: Request, timeout_s: float) -> Iterator[Run]:
        run = Run(request, self._routes, self._pace, timeout_s)
        self._runs.add(run)
        try:
            yield run
        finally:
            self._runs.discard(run)


def _completed(run: Run, num_prompt_tokens: int, num_output_tokens: int) -> Completed:
    run.report.ended_at = time.monotonic()
    return Completed(num_prompt_tokens, num_output_tokens, run.report)


def _with_calls(finished: Finished | None, num_calls: int) -> Finished | None:
    """A model that ended its output after tool calls waits for their results."""
    if finished is not None and num_calls and finished.reason == FINISH_REASON_STOP:
        finished.reason = FINISH_REASON_TOOL_CALLS
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
