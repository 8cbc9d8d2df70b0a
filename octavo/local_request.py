"""One prompt of `LLM` on its way, and what becomes of it.

SequenceOutput --take--> text, tool calls, log-probabilities --output--> RequestOutput
"""

from dataclasses import dataclass, field, replace

from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_call_parser import output_parser
from octavo.text.tool_calls import ToolCall, ToolUse
from octavo.token_logprobs import TokenLogprob, TokenLogprobs, joined


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sample."""

    index: int
    text: str  # without the tool calls
    token_ids: list[int]  # up to the one that ended it, that one included
    finish_reason: str  # "stop", "length", or "tool_calls" for a stop after tool calls
    stop_reason: int | str | None  # the stop token or stop string; None for end of sequence
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None  # of token_ids, if asked for


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and what was generated for it."""

    request_id: str
    prompt: str | None  # None if the prompt came as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool = True
    # Of prompt_token_ids, if asked for; None in place of the first, before which nothing stands.
    prompt_logprobs: list[TokenLogprob | None] | None = None


class LocalRequest:
    """One prompt on its way: its sequence, and the text made of its tokens so far."""

    def __init__(
        self, seq: Sequence, prompt: str | None, tokenizer: Tokenizer, tools: ToolUse | None
    ) -> None:
        self.seq = seq
        self._prompt = prompt
        markers = tools.format.markers if tools else ()
        self._text = TextOutput(tokenizer, seq.token_ids, seq.sampling, markers)
        self._parser = output_parser(tools)
        self._pieces: list[str] = []
        self._tool_calls: list[ToolCall] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []

    def take(self, output: SequenceOutput) -> bool:
        """Add new tokens; True if the request has ended, by the engine or by a stop string."""
        if output.error is not None:
            raise output.error
        delta = self._text.push(output.token_ids)
        self._token_ids += delta.token_ids
        has_ended = output.finish_reason is not None or delta.matched_stop is not None
        text = delta.text + (self._text.finish() if has_ended else "")
        parsed = self._parser.push(text, is_last=has_ended)
        self._pieces.append(parsed.text)
        self._tool_calls += parsed.tool_calls
        if output.logprobs is not None:
            self._logprobs.append(output.logprobs.part(0, len(delta.token_ids)))
        if output.prompt_logprobs is not None:
            self._prompt_logprobs.append(output.prompt_logprobs)
        return has_ended

    def output(self) -> RequestOutput:
        matched = self._text.matched_stop
        has_stopped = matched is not None or self.seq.finish_reason is FinishReason.STOP
        last = self._token_ids[-1]
        stop_token_id = last if last in self.seq.sampling.stop_token_ids and has_stopped else None
        completion = CompletionOutput(
            index=0,
            text="".join(self._pieces),
            token_ids=self._token_ids,
            finish_reason="stop" if has_stopped else "length",
            stop_reason=stop_token_id if matched is None else matched,
            tool_calls=self._tool_calls,
            logprobs=joined(self._logprobs).rows(self._token_ids) if self._logprobs else None,
        )
        if self._tool_calls and has_stopped and matched is None:
            completion = replace(completion, finish_reason="tool_calls")
        prompt_token_ids = self.seq.token_ids[: self.seq.num_prompt_tokens]
        return RequestOutput(
            request_id=self.seq.seq_id,
            prompt=self._prompt,
            prompt_token_ids=prompt_token_ids,
            outputs=[completion],
            num_cached_tokens=self.seq.num_cached_tokens,
            prompt_logprobs=self._score_prompt(prompt_token_ids),
        )

    def _score_prompt(self, token_ids: list[int]) -> list[TokenLogprob | None] | None:
        if self.seq.sampling.prompt_logprobs is None:
            return None
        parts = self._prompt_logprobs
        return [None, *(joined(parts).rows(token_ids[1:]) if parts else [])]
