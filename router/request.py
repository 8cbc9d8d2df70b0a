"""From a GenerateRequest to one that workers can run: every default filled in, every value checked.

    GenerateRequest --fields--> sampling --tokenizer thread--> token ids --limits--> Request

Nothing is sent anywhere before all of it passed. Every refusal names the field and the limit.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from octavo.block_key import MAX_SALT_BYTES
from octavo.inference.v1 import inference_pb2
from octavo.prompt_limits import check_length, check_prompt, check_prompt_logprobs
from octavo.router.adapter import AdapterFacts
from octavo.router.chat import check_chat, encode_chat, tools_of
from octavo.router.grammar import GrammarReader
from octavo.router.model import ServedModel
from octavo.rpc.errors import InvalidRequest, NotFound, Overloaded, Unsupported
from octavo.rpc.sampling import invalid_sampling, sampling_from_proto
from octavo.sampling_params import SamplingParams
from octavo.text.tool_calls import ToolUse

DEFAULT_MAX_TOKENS = 256
MAX_REQUEST_ID_BYTES = 256
# A model's defaults of these are of no use to a beam search.
DRAWING = ("temperature", "top_p", "top_k", "min_p")
# Longer text cannot fit the context: no tokenizer needs more bytes for a token on average. (A run
# of spaces may be one token of up to 16 bytes; such a prompt is refused early and by name.)
MAX_BYTES_PER_TOKEN = 8
# Text of so few bytes is tokenized on the event loop, in a fraction of a millisecond: a thread's
# wake-up and its turn of the interpreter's lock cost more.
MAX_INLINE_BYTES = 2048
# Text that waits for a tokenizer thread; the router's queue of tokens begins behind it.
MAX_QUEUED_BYTES = 64 << 20
RETRY_AFTER_S = 1.0

TextInput = inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation, fully resolved."""

    request_id: str  # the caller's, or drawn; never a key between our processes
    run_id: str  # that key
    prompt_token_ids: list[int]
    sampling: SamplingParams  # seed is set
    group_key: bytes
    include_text: bool
    include_token_ids: bool
    arrived_at: float  # time.monotonic()
    tools: ToolUse | None = None  # None: the output is text alone
    echo: bool = False
    prompt_text: str = ""  # if it is to be echoed
    adapter: AdapterFacts | None = None


class RequestReader:
    """Checks and resolves requests for one model."""

    def __init__(
        self,
        model: ServedModel,
        threads: Executor,
        grammars: GrammarReader,
        *,
        max_context_tokens: Callable[[], int],
        group_key_of: Callable[[str], bytes],
        find_adapter: Callable[[str], AdapterFacts],
    ) -> None:
        self._model = model
        self._threads = threads
        self._grammars = grammars
        self._max_context_tokens = max_context_tokens
        self._group_key_of = group_key_of
        self._find_adapter = find_adapter
        self._num_queued_bytes = 0
        self._draw = random.Random()

    async def read(
        self, message: inference_pb2.GenerateRequest, default_max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> Request:
        """Resolve a request.

        default_max_tokens: what an unset max_tokens means, or what is left of the context, if less.

        Raises:
            InvalidRequest, NotFound, Unsupported: naming the field.
            Overloaded: too much text, or too many grammars, wait already.
            NoWorker, Precondition: an adapter is asked for, and which one is not known.
        """
        arrived_at = time.monotonic()
        self.check_model(message.model)
        _check_fields(message)
        adapter = self._find_adapter(message.lora_adapter) if message.lora_adapter else None
        sampling = await self._sampling(message, default_max_tokens)
        prompt_token_ids = await self._prompt(message)
        sampling = await self._grammars.read(sampling, message.chat)
        return Request(
            request_id=message.request_id or secrets.token_hex(16),
            run_id=secrets.token_hex(16),
            prompt_token_ids=prompt_token_ids,
            sampling=self._fit(sampling, message, len(prompt_token_ids), default_max_tokens),
            group_key=self._group_key_of(message.cache_salt),
            include_text=_or_true(message.output, "include_text"),
            include_token_ids=_or_true(message.output, "include_token_ids"),
            echo=message.output.echo,
            prompt_text=await self._prompt_text(message.output, sampling, prompt_token_ids),
            arrived_at=arrived_at,
            tools=tools_of(message.chat, self._model.tool_call_format),
            adapter=adapter,
        )

    async def tokenize(self, message: TextInput) -> list[int]:
        """Token ids of a text or chat; of long ones computed off the event loop.

        Raises:
            InvalidRequest: there is none, or it cannot be tokenized.
            Overloaded: too much text waits already.
        """
        kind = message.WhichOneof("input")
        add_special = not message.HasField("add_special_tokens") or message.add_special_tokens
        if kind == "text":
            num_bytes = self._check_size("text", len(message.text.encode()))
            work = partial(self._model.tokenizer.encode, message.text, add_special)
        elif kind == "chat":
            check_chat(message.chat)
            num_bytes = self._check_size("chat", message.chat.ByteSize())
            work = partial(encode_chat, self._model.tokenizer, message.chat)
        else:
            raise InvalidRequest("input", "an input is required: text, token_ids or chat")
        try:
            if num_bytes <= MAX_INLINE_BYTES:
                return work()
            with self._queued(num_bytes):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except ValueError as error:
            raise InvalidRequest(kind, f"{kind}: {error}") from error

    def check_model(self, name: str) -> None:
        """Raise NotFound unless the name is empty or ours."""
        if name not in ("", self._model.name):
            raise NotFound(
                f"model {name[:200]!r} is not served here; served: {self._model.name!r}",
                field="model",
            )

    async def _sampling(
        self, message: inference_pb2.GenerateRequest, default_max_tokens: int
    ) -> SamplingParams:
        defaults = {"max_tokens": default_max_tokens, **self._model.sampling_defaults}
        if message.sampling.HasField("beam_search"):
            for name in DRAWING:
                defaults.pop(name, None)
        else:
            defaults["seed"] = self._draw.getrandbits(64)
        sampling = sampling_from_proto(message.sampling, message.output, defaults)
        try:
            if sampling.bad_words:
                sampling = await self._spell_bad_words(sampling)
            sampling.check_vocabulary(self._model.vocab_size, self._model.eos_token_ids)
        except ValueError as error:
            raise invalid_sampling(error) from error
        return sampling

    async def _spell_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        work = partial(self._model.tokenizer.bad_words_ids, sampling.bad_words)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        return replace(sampling, bad_words=(), bad_words_ids=(*sampling.bad_words_ids, *found))

    async def _prompt(self, message: inference_pb2.GenerateRequest) -> list[int]:
        kind = message.WhichOneof("input")
        if kind == "token_ids":
            token_ids = list(message.token_ids.ids)
        else:
            token_ids = await self.tokenize(message)
        try:
            check_prompt(token_ids, self._model.vocab_size, self._max_context_tokens())
        except ValueError as error:
            raise InvalidRequest(kind or "input", f"{kind}: {error}") from error
        return token_ids

    async def _prompt_text(
        self, output: inference_pb2.OutputOptions, sampling: SamplingParams, token_ids: list[int]
    ) -> str:
        if not (output.echo and _or_true(output, "include_text")):
            return ""
        decode = self._model.tokenizer.decode
        work = partial(decode, token_ids, sampling.skip_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _fit(
        self,
        sampling: SamplingParams,
        message: inference_pb2.GenerateRequest,
        num_prompt_tokens: int,
        default_max_tokens: int,
    ) -> SamplingParams:
        """Give an unset max_tokens what is left of the context; check one that is set."""
        context = self._max_context_tokens()
        try:
            check_prompt_logprobs(num_prompt_tokens, sampling.prompt_logprobs)
            if not message.sampling.HasField("max_tokens"):
                max_tokens = min(default_max_tokens, context - num_prompt_tokens)
                return replace(sampling, max_tokens=max_tokens)
            check_length(num_prompt_tokens, sampling.max_tokens, context)
        except ValueError as error:
            raise invalid_sampling(error) from error
        return sampling

    @contextmanager
    def _queued(self, num_bytes: int) -> Iterator[None]:
        total = self._num_queued_bytes + num_bytes
        if self._num_queued_bytes and total > MAX_QUEUED_BYTES:
            raise Overloaded(
                f"{self._num_queued_bytes} bytes of text wait for the tokenizer, {num_bytes} more "
                f"would exceed {MAX_QUEUED_BYTES}",
                RETRY_AFTER_S,
            )
        self._num_queued_bytes = total
        try:
            yield
        finally:
            self._num_queued_bytes -= num_bytes

    def _check_size(self, field: str, num_bytes: int) -> int:
        limit = MAX_BYTES_PER_TOKEN * self._max_context_tokens()
        if num_bytes > limit:
            raise InvalidRequest(
                field,
                f"{field} has {num_bytes} bytes, at most {limit} are tokenized for a context of "
                f"{self._max_context_tokens()} tokens",
            )
        return num_bytes


def _check_fields(message: inference_pb2.GenerateRequest) -> None:
    if message.priority != 0:
        raise Unsupported("priority")
    for name, limit in (("request_id", MAX_REQUEST_ID_BYTES), ("cache_salt", MAX_SALT_BYTES)):
        num_bytes = len(getattr(message, name).encode())
        if num_bytes > limit:
            raise InvalidRequest(name, f"{name} has {num_bytes} bytes, at most {limit}")


def _or_true(output: inference_pb2.OutputOptions, name: str) -> bool:
    return bool(getattr(output, name)) if output.HasField(name) else True
