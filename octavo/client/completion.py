"""What a generation gave: whole, or delta by delta.

StreamGenerateResponse --take--> Delta, Delta, ...
                          |
                          +----> Completion, once the stream has ended
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import grpc

from octavo.client.error import OctavoError
from octavo.client.tool_call import ToolCall
from octavo.inference.v1 import inference_pb2 as pb
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.token_logprobs import TokenLogprob, TokenLogprobs, joined


class FinishReason(StrEnum):
    """Why an output ended; reasons of a newer service read as OTHER."""

    STOP = "stop"  # an end-of-sequence token, or one of stop_token_ids
    STOP_SEQUENCE = "stop_sequence"  # one of the stop strings
    LENGTH = "length"  # max_tokens
    TOOL_CALLS = "tool_calls"  # as STOP, after at least one tool call
    OTHER = "other"

    @classmethod
    def _of(cls, reason: int) -> "FinishReason":
        name = pb.FinishReason.Name(reason) if reason in pb.FinishReason.values() else ""
        return cls.__members__.get(name.removeprefix("FINISH_REASON_"), cls.OTHER)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    transferred_prompt_tokens: int = 0
    cached_on_prefill_worker: int = 0
    cached_on_decode_worker: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, as the service measured it, and who did the work."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    prefill_worker: str = ""
    decode_worker: str = ""

    @classmethod
    def of(cls, message: pb.Timing) -> Self:
        return cls(
            message.queue.ToNanoseconds() / 1e9,
            message.prefill.ToNanoseconds() / 1e9,
            message.transfer.ToNanoseconds() / 1e9,
            message.time_to_first_token.ToNanoseconds() / 1e9,
            message.total.ToNanoseconds() / 1e9,
            message.prefill_worker,
            message.decode_worker,
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, tokens and tool calls of a candidate; text and calls may lag behind tokens."""

    text: str
    token_ids: list[int]
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: TokenLogprobs | None = None  # of the new tokens, if asked for
    index: int = 0  # of the candidate


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several outputs of a prompt."""

    index: int
    text: str  # without the tool calls
    token_ids: list[int]
    finish_reason: FinishReason
    matched_stop: str | int | None  # the stop string, or the token, that ended the output
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None  # of token_ids, if asked for
    cumulative_logprob: float | None = None  # of all tokens; with logprobs, best_of, beam_search
    score: float | None = None  # what candidates are ordered by; with best_of, beam_search


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything that a request gave; text, tokens and so on are those of its first candidate."""

    text: str  # without the tool calls
    token_ids: list[int]
    finish_reason: FinishReason
    matched_stop: str | int | None  # the stop string, or the token, that ended the output
    usage: Usage
    timing: Timing
    model: str
    request_id: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None  # of token_ids, if asked for
    prompt: str = ""  # with echo
    prompt_token_ids: list[int] = field(default_factory=list)  # with echo or prompt_logprobs
    # Of prompt_token_ids, if asked for; None in place of the first, before which nothing stands.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    candidates: list[Candidate] = field(default_factory=list)  # n of them, the first included

    @property
    def message(self) -> dict[str, Any]:
        """The output as a message, to go on with the conversation."""
        calls = [call.to_message() for call in self.tool_calls]
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        return message | ({"tool_calls": calls} if calls else {})

    @classmethod
    def of(cls, message: pb.GenerateResponse) -> Self:
        candidates = [_candidate(candidate) for candidate in message.candidates]
        first = candidates[0]
        return cls(
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=first.finish_reason,
            matched_stop=first.matched_stop,
            usage=_usage(message.usage),
            timing=Timing.of(message.timing),
            model=message.model,
            request_id=message.request_id,
            tool_calls=first.tool_calls,
            logprobs=first.logprobs,
            prompt=message.prompt.text,
            prompt_token_ids=list(message.prompt.token_ids),
            prompt_logprobs=_prompt_rows(message.prompt),
            candidates=candidates,
        )


class Transcript:
    """Gathers the events of a stream into a completion."""

    def __init__(self) -> None:
        self._drafts: defaultdict[int, _Draft] = defaultdict(_Draft)
        self._started = pb.StreamGenerateResponse.Started()
        self._completion: Completion | None = None

    def take(self, message: pb.StreamGenerateResponse) -> Delta | None:
        """Note what a message says; return what is new for a reader, if anything is."""
        if message.HasField("started"):
            self._started = message.started
        delta = None
        if message.HasField("delta"):
            delta = _delta(message.delta)
            self._drafts[delta.index].add(delta)
        if message.HasField("finished"):
            self._drafts[message.finished.index].finished = message.finished
        if message.HasField("completed"):
            self._completion = self._complete(message)
        return delta

    @property
    def completion(self) -> Completion:
        """The whole output.

        Raises:
            RuntimeError: the stream was not read to its end.
        """
        if self._completion is None:
            raise RuntimeError("read the stream to its end before asking for the completion")
        return self._completion

    def check_complete(self) -> None:
        """Raise OctavoError if a stream ended well but without its last message."""
        if self._completion is None:
            raise OctavoError(grpc.StatusCode.INTERNAL, "the stream ended before it was complete")

    def _complete(self, message: pb.StreamGenerateResponse) -> Completion:
        prompt = self._started.prompt
        first = self._drafts[0].candidate(0)
        candidates = [draft.candidate(index) for index, draft in sorted(self._drafts.items())]
        return Completion(
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=first.finish_reason,
            matched_stop=first.matched_stop,
            usage=_usage(message.completed.usage),
            timing=Timing.of(message.completed.timing),
            model=self._started.model,
            request_id=message.request_id,
            tool_calls=first.tool_calls,
            logprobs=first.logprobs,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.token_ids),
            prompt_logprobs=_prompt_rows(prompt),
            candidates=candidates,
        )


class _Draft:
    """What came of one candidate so far."""

    def __init__(self) -> None:
        self.finished = pb.StreamGenerateResponse.Finished()
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._tool_calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprobs] = []

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._tool_calls += delta.tool_calls
        if delta.logprobs is not None:
            self._logprobs.append(delta.logprobs)

    def candidate(self, index: int) -> Candidate:
        logprobs = joined(self._logprobs) if self._logprobs else None
        return Candidate(
            index=index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            finish_reason=FinishReason._of(self.finished.finish_reason),
            matched_stop=_matched_stop(self.finished),
            tool_calls=self._tool_calls,
            logprobs=_rows(self._token_ids, logprobs),
            cumulative_logprob=self._total(logprobs),
            score=self.finished.score if self.finished.HasField("score") else None,
        )

    def _total(self, logprobs: TokenLogprobs | None) -> float | None:
        if self.finished.HasField("cumulative_logprob"):
            return self.finished.cumulative_logprob
        return None if logprobs is None else sum(logprobs.logprobs)


def _candidate(message: pb.Candidate) -> Candidate:
    has_sum = message.HasField("cumulative_logprob")
    return Candidate(
        index=message.index,
        text=message.text,
        token_ids=list(message.token_ids),
        finish_reason=FinishReason._of(message.finish_reason),
        matched_stop=_matched_stop(message),
        tool_calls=ToolCall.all_of(message.tool_calls),
        logprobs=_rows(message.token_ids, _logprobs(message)),
        cumulative_logprob=message.cumulative_logprob if has_sum else None,
        score=message.score if message.HasField("score") else None,
    )


def _delta(message: pb.StreamGenerateResponse.Delta) -> Delta:
    calls = ToolCall.all_of(message.tool_calls) if message.tool_calls else []
    return Delta(message.text, list(message.token_ids), calls, _logprobs(message), message.index)


def _logprobs(
    message: pb.Candidate | pb.Prompt | pb.StreamGenerateResponse.Delta,
) -> TokenLogprobs | None:
    return logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else None


def _rows(token_ids: Sequence[int], logprobs: TokenLogprobs | None) -> list[TokenLogprob] | None:
    return None if logprobs is None else logprobs.rows(token_ids)


def _prompt_rows(prompt: pb.Prompt) -> list[TokenLogprob | None] | None:
    logprobs = _logprobs(prompt)
    return None if logprobs is None else [None, *logprobs.rows(prompt.token_ids[1:])]


def _usage(message: pb.Usage) -> Usage:
    return Usage(
        message.prompt_tokens,
        message.completion_tokens,
        message.cached_prompt_tokens,
        message.transferred_prompt_tokens,
        message.cached_on_prefill_worker,
        message.cached_on_decode_worker,
    )


def _matched_stop(
    message: pb.Candidate | pb.StreamGenerateResponse.Finished,
) -> str | int | None:
    match message.WhichOneof("matched_stop"):
        case "matched_stop_text":
            return message.matched_stop_text
        case "matched_stop_token_id":
            return message.matched_stop_token_id
    return None
