"""One sample as its caller sees it: tokens become text, and text may end it.

NewTokens --> TextOutput --text--> OutputParser --> Reply
                  |                (tool calls)
                  +-- a stop string matched: has_stopped
"""

from dataclasses import dataclass

from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_STOP,
    FINISH_REASON_STOP_SEQUENCE,
    FINISH_REASON_TOOL_CALLS,
    FINISH_REASON_UNSPECIFIED,
    FinishReason,
)
from octavo.router.attempt import NewTokens
from octavo.router.model import ServedModel
from octavo.router.report import Moved, RunReport
from octavo.router.request import Request
from octavo.router.scores import Scores
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
    beam: tuple[float, float] | None = None  # cumulative log-probability and score


@dataclass(slots=True)
class Completed:
    """Last of all."""

    num_prompt_tokens: int
    num_output_tokens: int  # of all samples
    report: RunReport
    num_samples: int = 1

    @property
    def moved(self) -> Moved:
        """Prompt tokens by where their KV was found."""
        return self.report.moved(self.num_prompt_tokens, 1 + self.num_further_tokens)

    @property
    def num_further_tokens(self) -> int:
        """Output tokens but the first of each sample."""
        return self.num_output_tokens - self.num_samples


@dataclass(slots=True)
class Reply:
    """Everything that is new of one sample at one time; its parts happened in this order."""

    started: Started | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: TokenLogprobs | None = None  # of token_ids
    finished: Finished | None = None
    completed: Completed | None = None
    sample: int = 0


class Sample:
    """Text, tool calls and log-probabilities of one sample, as its tokens come."""

    def __init__(self, index: int, model: ServedModel, request: Request) -> None:
        markers = request.tools.format.markers if request.tools else ()
        self.num_tokens = 0
        self.is_finished = False
        self.has_stopped = False  # by a stop string, of which workers know nothing
        self._index = index
        self._text = TextOutput(
            model.tokenizer, request.prompt_token_ids, request.sampling, markers
        )
        self._parser = output_parser(request.tools)

    def take(self, new: NewTokens, scores: Scores | None) -> Reply:
        """What these tokens are to the caller."""
        reply = Reply(sample=self._index)
        delta = self._text.push(new.token_ids)
        start, self.num_tokens = self.num_tokens, self.num_tokens + len(delta.token_ids)
        if scores is not None:
            reply.logprobs = scores.tokens(self._index, start, self.num_tokens)
        text, reply.token_ids = delta.text, delta.token_ids
        finished = _finished(self._text, new.finish_reason, delta.token_ids)
        if finished is not None and delta.matched_stop is None:
            text += self._text.finish()
            finished = _finished(self._text, new.finish_reason, delta.token_ids)
        parsed = self._parser.push(text, is_last=finished is not None)
        reply.text, reply.tool_calls = parsed.text, parsed.tool_calls
        if finished is not None:
            reply.finished = _with_calls(finished, self._parser.num_calls)
            finished.beam = new.beam
            self.is_finished = True
            self.has_stopped = new.finish_reason == FINISH_REASON_UNSPECIFIED
        return reply


def _with_calls(finished: Finished, num_calls: int) -> Finished:
    """A model that ended its output after tool calls waits for their results."""
    if num_calls and finished.reason == FINISH_REASON_STOP:
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
