"""`LLM`: one engine that does both phases, in this process, on this thread and its helpers.

    prompts --tokenizer--> sequences --> engine.step() until all have ended --> text, outputs
                                ^                            |
                                +---- released by a stop string

The shape is vLLM's: `LLM(model=...).generate(prompts, params)`.
"""

import itertools
import secrets
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import Progress

from octavo.checkpoint.config import load_generation_defaults
from octavo.checkpoint.resolve import resolve_model
from octavo.engine.build import build_engine, choose_device
from octavo.engine.config import EngineConfig
from octavo.engine.core_set import llm_cores
from octavo.engine.load import Counters
from octavo.engine.pinned_team import on_this_thread, team_of
from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput
from octavo.sampling_params import SamplingParams, check_prompt_logprobs
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer
from octavo.token_logprobs import TokenLogprob, TokenLogprobs, joined

Prompt = str | Listed[int] | Mapping[str, Any]  # text, token ids, or a mapping of either
Messages = Listed[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sample."""

    index: int
    text: str
    token_ids: list[int]  # up to the one that ended it, that one included
    finish_reason: str  # "stop" or "length"
    stop_reason: int | str | None  # the stop token or stop string; None for end of sequence
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

    def __init__(self, seq: Sequence, prompt: str | None, tokenizer: Tokenizer) -> None:
        self.seq = seq
        self._prompt = prompt
        self._text = TextOutput(tokenizer, seq.token_ids, seq.sampling)
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []

    def take(self, output: SequenceOutput) -> bool:
        """Add new tokens; True if the request has ended, by the engine or by a stop string."""
        if output.error is not None:
            raise output.error
        delta = self._text.push(output.token_ids)
        self._pieces.append(delta.text)
        self._token_ids += delta.token_ids
        if output.logprobs is not None:
            self._logprobs.append(output.logprobs.part(0, len(delta.token_ids)))
        if output.prompt_logprobs is not None:
            self._prompt_logprobs.append(output.prompt_logprobs)
        if output.finish_reason is not None:
            self._pieces.append(self._text.finish())
        return output.finish_reason is not None or delta.matched_stop is not None

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
            logprobs=joined(self._logprobs).rows(self._token_ids) if self._logprobs else None,
        )
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


class LLM:
    """A model in this process.

    Args:
        model: folder, GGUF file or hub id.
        num_threads: on a CPU, at most; default: one for each physical core this process may use.
        settings: as in `octavo.engine.config.EngineConfig`.

    While it generates, the calling thread stays on one core and torch uses one thread; both are as
    before when `generate` returns. The other threads sleep on cores of their own in between. Where
    weights are multiplied by torch (kernels/cpu/linear.py) it uses its own threads instead.
    """

    def __init__(self, model: str, *, num_threads: int | None = None, **settings: Any) -> None:
        path = resolve_model(str(model))
        config = EngineConfig(model=str(path), **settings)
        is_cpu = choose_device(config.device).type == "cpu"
        self._num_threads = num_threads
        self._team = team_of(llm_cores(num_threads)) if is_cpu else None
        if self._team is not None:
            weakref.finalize(self, self._team.work_alone).atexit = False  # ends its threads
        self.engine = build_engine(config, cores=self._team)
        self.tokenizer = Tokenizer.load(path)
        self._defaults = load_generation_defaults(path)
        # Nobody else shares this process's cache, so any key does.
        self._group_key = secrets.token_bytes(32)
        self._numbers = itertools.count()

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json asks for."""
        named = {
            name: value
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
            if (value := getattr(self._defaults, name)) is not None
        }
        return SamplingParams(**named)

    def generate(
        self,
        prompts: Prompt | Listed[Prompt],
        sampling_params: SamplingParams | Listed[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs stand in the order of the prompts.

        A list of numbers is one prompt, a list of anything else is many. Without sampling params
        the model's own defaults hold; one for all, or a list of one per prompt.

        Raises:
            ValueError: a prompt or a parameter cannot be run; nothing was generated.
        """
        many = _as_list(prompts)
        samplings = self._per_prompt(sampling_params, len(many))
        requests = [
            self._make_request(prompt, sampling)
            for prompt, sampling in zip(many, samplings, strict=True)
        ]
        with on_this_thread(self._team, self._num_threads):
            return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Messages | Listed[Messages],
        sampling_params: SamplingParams | Listed[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer a chat, or each of a list of chats, through the model's chat template."""
        chats: list[Any] = list(messages)
        if chats and isinstance(chats[0], Mapping):
            chats = [chats]
        prompts: list[Prompt] = [self.tokenizer.encode_chat(chat) for chat in chats]
        return self.generate(prompts, sampling_params, use_tqdm)

    def counters(self) -> Counters:
        return self.engine.counters()

    def _per_prompt(
        self, sampling: SamplingParams | Listed[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if sampling is None:
            sampling = self.default_sampling_params()
        if isinstance(sampling, SamplingParams):
            return [sampling] * count
        if len(sampling) != count:
            raise ValueError(f"{count} prompts came with {len(sampling)} sampling params")
        return list(sampling)

    def _make_request(self, prompt: Prompt, sampling: SamplingParams) -> LocalRequest:
        text, token_ids = self._read_prompt(prompt)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(64))
        if sampling.bad_words:
            found = self.tokenizer.bad_words_ids(sampling.bad_words)
            ids = (*sampling.bad_words_ids, *found)
            sampling = replace(sampling, bad_words=(), bad_words_ids=ids)
        check_prompt_logprobs(len(token_ids), sampling.prompt_logprobs)
        seq = Sequence(
            seq_id=str(next(self._numbers)),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            sampling=sampling,
            group_key=self._group_key,
            eos_token_ids=frozenset(self.engine.model_config.eos_token_ids),
        )
        self.engine.check(seq)
        return LocalRequest(seq, text, self.tokenizer)

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if "prompt" not in prompt:
                raise ValueError(
                    f"a prompt mapping needs prompt or prompt_token_ids, got {sorted(prompt)}"
                )
            prompt = str(prompt["prompt"])
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        return None, [int(token_id) for token_id in prompt]

    def _run(self, requests: list[LocalRequest], use_tqdm: bool) -> list[RequestOutput]:
        scheduler = self.engine.scheduler
        active = {request.seq.seq_id: request for request in requests}
        try:
            for request in requests:
                scheduler.add(request.seq)
            with Progress(disable=not use_tqdm, transient=True) as progress:
                task = progress.add_task("prompts", total=len(requests))
                while active:
                    for output in self.engine.step():
                        if active[output.seq_id].take(output):
                            del active[output.seq_id]
                            scheduler.release(output.seq_id)
                            progress.advance(task)
        finally:
            for seq_id in active:  # an interrupt or an error leaves nothing held
                scheduler.release(seq_id)
        return [request.output() for request in requests]


def _as_list(prompts: Prompt | Listed[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many: list[Any] = list(prompts)
    return [many] if many and not isinstance(many[0], str | Mapping | Listed) else many
