"""What a generation gave: whole, or delta by delta."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from octavo.client.tool_call import ToolCall
from octavo.inference.v1 import inference_pb2 as pb
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.token_logprobs import TokenLogprob, TokenLogprobs


class FinishReason(StrEnum):
    """Why an output ended; reasons of a newer service read as OTHER."""

    STOP = "stop"  # an end-of-sequence token, or one of stop_token_ids
    STOP_SEQUENCE = "stop_sequence"  # one of the stop strings
    LENGTH = "length"  # max_tokens
    TOOL_CALLS = "tool_calls"  # as STOP, after at least one tool call
    OTHER = "other"

    @classmethod
    def of(cls, reason: int) -> "FinishReason":
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

    @classmethod
    def of(cls, message: pb.Usage) -> Self:
        return cls(
            message.prompt_tokens,
            message.completion_tokens,
            message.cached_prompt_tokens,
            message.transferred_prompt_tokens,
            message.cached_on_prefill_worker,
            message.cached_on_decode_worker,
        )


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

    @classmethod
    def of(cls, message: pb.StreamGenerateResponse.Delta) -> Self:
        calls = ToolCall.all_of(message.tool_calls) if message.tool_calls else []
        logprobs = _logprobs(message)
        return cls(message.text, list(message.token_ids), calls, logprobs, message.index)


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

    @classmethod
    def of(cls, message: pb.Candidate) -> Self:
        has_sum = message.HasField("cumulative_logprob")
        return cls(
            index=message.index,
            text=message.text,
            token_ids=list(message.token_ids),
            finish_reason=FinishReason.of(message.finish_reason),
            matched_stop=matched_stop(message),
            tool_calls=ToolCall.all_of(message.tool_calls),
            logprobs=rows(message.token_ids, _logprobs(message)),
            cumulative_logprob=message.cumulative_logprob if has_sum else None,
            score=message.score if message.HasField("score") else None,
        )


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
        candidates = [Candidate.of(candidate) for candidate in message.candidates]
        return cls.joined(
            candidates, message.prompt, message, model=message.model, request_id=message.request_id
        )

    @classmethod
    def joined(
        cls,
        candidates: list[Candidate],
        prompt: pb.Prompt,
        cost: pb.GenerateResponse | pb.StreamGenerateResponse.Completed,
        *,
        model: str,
        request_id: str,
    ) -> Self:
        """Of its parts; cost: what holds usage and timing."""
        first = candidates[0]
        return cls(
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=first.finish_reason,
            matched_stop=first.matched_stop,
            usage=Usage.of(cost.usage),
            timing=Timing.of(cost.timing),
            model=model,
            request_id=request_id,
            tool_calls=first.tool_calls,
            logprobs=first.logprobs,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.token_ids),
            prompt_logprobs=_prompt_rows(prompt),
            candidates=candidates,
        )


def _logprobs(
    message: pb.Candidate | pb.Prompt | pb.StreamGenerateResponse.Delta,
) -> TokenLogprobs | None:
    return logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else None


def rows(token_ids: Sequence[int], logprobs: TokenLogprobs | None) -> list[TokenLogprob] | None:
    """One a token, if there are any."""
    return None if logprobs is None else logprobs.rows(token_ids)


def _prompt_rows(prompt: pb.Prompt) -> list[TokenLogprob | None] | None:
    logprobs = _logprobs(prompt)
    return None if logprobs is None else [None, *logprobs.rows(prompt.token_ids[1:])]


def matched_stop(
    message: pb.Candidate | pb.StreamGenerateResponse.Finished,
) -> str | int | None:
    """The stop string, or the token, that ended an output."""
    match message.WhichOneof("matched_stop"):
        case "matched_stop_text":
            return message.matched_stop_text
        case "matched_stop_token_id":
            return message.matched_stop_token_id
    return None
