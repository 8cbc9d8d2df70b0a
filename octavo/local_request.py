"""One prompt of `LLM` on its way, and what becomes of it.

SequenceOutput --take--> LocalSample: text, tool calls, log-probabilities --output--> RequestOutput
"""

from dataclasses import dataclass, field, replace

from octavo.engine.beam_state import Beam
from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput
from octavo.ranking import best, mean_logprob
from octavo.sampling_params import SamplingParams
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
    cumulative_logprob: float | None = None  # of token_ids; with logprobs, best_of, beam_search
    score: float | None = None  # what outputs are ordered by; with best_of, beam_search


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
    """One prompt on its way: its sequence, and what its samples made so far."""

    def __init__(
        self,
        seq: Sequence,
        prompt: str | None,
        tokenizer: Tokenizer,
        tools: ToolUse | None,
        sampling: SamplingParams,
    ) -> None:
        """sampling: what the caller asked for; the sequence's own may score more."""
        self.seq = seq
        self._prompt = prompt
        self._prompt_token_ids = list(seq.token_ids)
        self._sampling = sampling
        self._samples = [
            LocalSample(index, seq, tokenizer, tools) for index in range(sampling.num_samples)
        ]
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def has_ended(self) -> bool:
        return all(sample.has_ended for sample in self._samples)

    def take(self, output: SequenceOutput) -> bool:
        """Add what is new; True if the sample has ended, by the engine or by a stop string."""
        if output.error is not None:
            raise output.error
        if output.prompt_logprobs is not None:
            self._prompt_logprobs.append(output.prompt_logprobs)
        sample = self._samples[output.sample_index]
        sample.take(output)
        return sample.has_ended

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.seq.seq_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=self._outputs(),
            num_cached_tokens=self.seq.num_cached_tokens,
            prompt_logprobs=self._score_prompt(),
        )

    def _outputs(self) -> list[CompletionOutput]:
        outputs = [sample.output() for sample in self._samples]
        if not self._sampling.chooses_best:
            return outputs
        scores = [sample.mean_logprob for sample in self._samples]
        chosen = []
        for index, place in enumerate(best(scores, self._sampling.n)):
            output = replace(outputs[place], index=index, score=scores[place])
            if self._sampling.logprobs is None:
                output = replace(output, logprobs=None)
            chosen.append(output)
        return chosen

    def _score_prompt(self) -> list[TokenLogprob | None] | None:
        if self._sampling.prompt_logprobs is None:
            return None
        parts = self._prompt_logprobs
        return [None, *(joined(parts).rows(self._prompt_token_ids[1:]) if parts else [])]


class LocalSample:
    """One sample of a request: the text made of its tokens so far."""

    def __init__(
        self, index: int, seq: Sequence, tokenizer: Tokenizer, tools: ToolUse | None
    ) -> None:
        self.has_ended = False
        self._index = index
        self._sampling = seq.sampling
        markers = tools.format.markers if tools else ()
        self._text = TextOutput(tokenizer, seq.token_ids, seq.sampling, markers)
        self._parser = output_parser(tools)
        self._pieces: list[str] = []
        self._tool_calls: list[ToolCall] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason: FinishReason | None = None
        self._beam: Beam | None = None

    @property
    def mean_logprob(self) -> float:
        return mean_logprob(joined(self._logprobs).logprobs)

    def take(self, output: SequenceOutput) -> None:
        delta = self._text.push(output.token_ids)
        self._token_ids += delta.token_ids
        self._reason = output.finish_reason
        self._beam = output.beam
        self.has_ended = output.finish_reason is not None or delta.matched_stop is not None
        text = delta.text + (self._text.finish() if self.has_ended else "")
        parsed = self._parser.push(text, is_last=self.has_ended)
        self._pieces.append(parsed.text)
        self._tool_calls += parsed.tool_calls
        if output.logprobs is not None:
            self._logprobs.append(output.logprobs.part(0, len(delta.token_ids)))

    def output(self) -> CompletionOutput:
        matched = self._text.matched_stop
        has_stopped = matched is not None or self._reason is FinishReason.STOP
        last = self._token_ids[-1]
        stop_token_id = last if last in self._sampling.stop_token_ids and has_stopped else None
        logprobs = joined(self._logprobs) if self._logprobs else None
        completion = CompletionOutput(
            index=self._index,
            text="".join(self._pieces),
            token_ids=self._token_ids,
            finish_reason="stop" if has_stopped else "length",
            stop_reason=stop_token_id if matched is None else matched,
            tool_calls=self._tool_calls,
            logprobs=logprobs.rows(self._token_ids) if logprobs else None,
            cumulative_logprob=sum(logprobs.logprobs) if logprobs else None,
        )
        if self._beam is not None:
            total, score = self._beam.cumulative_logprob, self._beam.score
            completion = replace(completion, cumulative_logprob=total, score=score)
        if self._tool_calls and has_stopped and matched is None:
            completion = replace(completion, finish_reason="tool_calls")
        return completion
