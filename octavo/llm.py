"""`LLM`: one engine that does both phases, in this process, on this thread and its helpers.

    prompts --tokenizer--> sequences --> engine.step() until all have ended --> text, outputs
                                ^                            |
                                +---- stopped by a stop string

The shape is vLLM's: `LLM(model=...).generate(prompts, params)`.
"""

import itertools
import secrets
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.progress import Progress

from octavo.checkpoint.config import load_generation_defaults
from octavo.checkpoint.resolve import resolve_model
from octavo.engine.build import build_engine, choose_device
from octavo.engine.config import EngineConfig
from octavo.engine.core_set import llm_cores
from octavo.engine.load import Counters
from octavo.engine.pinned_team import on_this_thread, team_of
from octavo.engine.sequence import Sequence
from octavo.grammar.compiler import Compiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.matcher import Grammar
from octavo.grammar.tool_calls import tool_call_grammar
from octavo.grammar.vocabulary import Vocabulary
from octavo.local_request import CompletionOutput, LocalRequest, RequestOutput
from octavo.prompt_limits import check_prompt_logprobs
from octavo.sampling_params import SamplingParams
from octavo.text.chat import Message, Tool, tool_names
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_calls import AUTO, ToolUse, check_format_name, choose_format
from octavo.text.tool_choice import ToolChoice, forced_functions

Prompt = str | Listed[int] | Mapping[str, Any]  # text, token ids, or a mapping of either
Messages = Listed[Message]
AdapterNames = str | Listed[str | None] | None  # names of LoRA adapters; None: none

__all__ = ["LLM", "CompletionOutput", "Messages", "Prompt", "RequestOutput"]


class LLM:
    """A model in this process.

    Args:
        model: folder, GGUF file or hub id.
        num_threads: on a CPU, at most; default: one for each physical core this process may use.
        tool_call_format: how the model writes tool calls: auto (by its chat template), hermes,
            llama3_json or none.
        settings: as in `octavo.engine.config.EngineConfig`; lora={"name": folder} loads adapters.

    While it generates, the calling thread stays on one core and torch uses one thread; both are as
    before when `generate` returns. The other threads sleep on cores of their own in between. Where
    weights are multiplied by torch (kernels/cpu/linear.py) it uses its own threads instead.
    """

    def __init__(
        self,
        model: str,
        *,
        num_threads: int | None = None,
        tool_call_format: str = AUTO,
        **settings: Any,
    ) -> None:
        check_format_name(tool_call_format)
        path = resolve_model(str(model))
        config = EngineConfig(model=str(path), **settings)
        is_cpu = choose_device(config.device).type == "cpu"
        self._num_threads = num_threads
        self._team = team_of(llm_cores(num_threads)) if is_cpu else None
        if self._team is not None:
            weakref.finalize(self, self._team.work_alone).atexit = False  # ends its threads
        self.engine = build_engine(config, cores=self._team)
        self.tokenizer = Tokenizer.load(path)
        self._tool_call_format = choose_format(tool_call_format, self.tokenizer.chat_template.text)
        self._defaults = load_generation_defaults(path)
        # Nobody else shares this process's cache, so any key does.
        self._group_key = secrets.token_bytes(32)
        self._numbers = itertools.count()
        self._path = path

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
        *,
        lora_adapter: AdapterNames = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs stand in the order of the prompts.

        A list of numbers is one prompt, a list of anything else is many. Without sampling params
        the model's own defaults hold; one for all, or a list of one per prompt. lora_adapter: the
        name of a loaded adapter (None: the model as it is), one for all or one per prompt.

        Raises:
            ValueError: a prompt or a parameter cannot be run; nothing was generated.
            UnknownAdapter: no adapter of this name is loaded.
        """
        return self._complete(_as_list(prompts), sampling_params, use_tqdm, None, lora_adapter)

    def chat(
        self,
        messages: Messages | Listed[Messages],
        sampling_params: SamplingParams | Listed[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        tools: Listed[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        lora_adapter: AdapterNames = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer a chat, or each of a list of chats, through the model's chat template.

        tools: what the model may call, each {"type": "function", "function": {...}}.
        tool_choice: "auto", "none", "required" (calls alone, one or more) or
            {"type": "function", "function": {"name": ...}} (one call of it).
        lora_adapter: as in `generate`.
        options: add_generation_prompt, continue_final_message and chat_template_kwargs, as in
            `Tokenizer.encode_chat`.
        """
        chats: list[Any] = list(messages)
        if chats and isinstance(chats[0], Mapping):
            chats = [chats]
        offered = tools or () if tool_choice != "none" else ()
        forced = forced_functions(offered, tool_choice)
        prompts: list[Prompt] = [
            self.tokenizer.encode_chat(chat, tools=offered, **options) for chat in chats
        ]
        format = self._tool_call_format
        tool_use = ToolUse(format, tool_names(offered)) if format and offered else None
        if forced:
            samplings = self._per_prompt(sampling_params, len(prompts))
            grammar = self._grammar_of_calls(forced, is_one=tool_choice != "required")
            sampling_params = [replace(each, ebnf_grammar=grammar) for each in samplings]
        return self._complete(prompts, sampling_params, use_tqdm, tool_use, lora_adapter)

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter from a PEFT folder, for `generate` and `chat` to choose.

        Raises:
            CheckpointError: it does not fit; the message says what to do.
            AdapterConflict, TooManyAdapters: the name is taken, or max_loras are loaded.
        """
        self.engine.adapters.load(name, Path(path))

    def unload_adapter(self, name: str) -> None:
        """Raises UnknownAdapter."""
        self.engine.adapters.unload(name)

    @cached_property
    def _grammar(self) -> Callable[[Constraint], Grammar]:
        """Compiles; made when it is first needed, which takes a moment."""
        model = self.engine.model_config
        vocabulary = Vocabulary.load(self._path, model.vocab_size, model.eos_token_ids)
        return Compiler(vocabulary).compile

    def _grammar_of_calls(self, functions: list[dict[str, Any]], *, is_one: bool) -> str:
        format = self._tool_call_format
        if format is None:
            raise ValueError("tool_choice needs a model whose way of writing tool calls is known")
        special_tokens = self.tokenizer.special_tokens
        return tool_call_grammar(format, functions, special_tokens, is_one=is_one)

    def _complete(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Listed[SamplingParams] | None,
        use_tqdm: bool,
        tools: ToolUse | None,
        lora_adapter: AdapterNames,
    ) -> list[RequestOutput]:
        samplings = self._per_prompt(sampling_params, len(prompts))
        requests = [
            self._make_request(prompt, sampling, tools)
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        if lora_adapter is not None:
            self._choose_adapters(requests, lora_adapter)
        with on_this_thread(self._team, self._num_threads):
            return self._run(requests, use_tqdm)

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

    def _choose_adapters(self, requests: list[LocalRequest], names: AdapterNames) -> None:
        chosen = [names] * len(requests) if isinstance(names, str) else list(names or ())
        if len(chosen) != len(requests):
            raise ValueError(f"{len(requests)} prompts came with {len(chosen)} lora_adapter names")
        for request, name in zip(requests, chosen, strict=True):
            request.seq.adapter = self.engine.adapters.named(name) if name else None

    def _make_request(
        self, prompt: Prompt, sampling: SamplingParams, tools: ToolUse | None
    ) -> LocalRequest:
        text, token_ids = self._read_prompt(prompt)
        if sampling.seed is None and sampling.beam_search is None:
            sampling = replace(sampling, seed=secrets.randbits(64))
        if sampling.bad_words:
            found = self.tokenizer.bad_words_ids(sampling.bad_words)
            ids = (*sampling.bad_words_ids, *found)
            sampling = replace(sampling, bad_words=(), bad_words_ids=ids)
        check_prompt_logprobs(len(token_ids), sampling.prompt_logprobs)
        constraint = sampling.constraint
        seq = Sequence(
            seq_id=str(next(self._numbers)),
            token_ids=list(token_ids),
            num_prompt_tokens=len(token_ids),
            sampling=replace(sampling, logprobs=sampling.computed_logprobs),
            group_key=self._group_key,
            eos_token_ids=frozenset(self.engine.model_config.eos_token_ids),
            grammar=None if constraint is None else self._grammar(constraint),
        )
        self.engine.check(seq)
        return LocalRequest(seq, text, self.tokenizer, tools, sampling)

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
                        request = active[output.seq_id]
                        if request.take(output):
                            scheduler.stop(output.seq_id, {output.sample_index})
                        if request.has_ended:
                            del active[output.seq_id]
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
