"""The API of one model, whatever protocol carries it: request in, messages out, a line in the log.

gRPC servicer --+                      +-- RequestReader --> Generator --> ReplyWriter --+
                +-- GenerateRequest -->|                                                 |
HTTP endpoint --+                      +-------- StreamGenerateResponse, ... <-----------+
"""

import logging
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from octavo.inference.v1 import inference_pb2
from octavo.router.adapters import Adapters
from octavo.router.generation import Generator
from octavo.router.model import ServedModel
from octavo.router.replies import ReplyWriter, Response, join, keep_best
from octavo.router.request import DEFAULT_MAX_TOKENS, Request, RequestReader
from octavo.router.request_counts import RequestCounts, finish_reason_name
from octavo.router.sample import Completed, Reply
from octavo.router.workers import Workers
from octavo.rpc.call_log import Fields, logged
from octavo.rpc.errors import InvalidRequest
from octavo.rpc.sampling import sampling_to_proto
from octavo.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and what its protocol says beside the request."""

    protocol: str  # "grpc" or "http"
    remaining_s: float = math.inf  # until its deadline
    default_max_tokens: int = DEFAULT_MAX_TOKENS  # or what is left of the context, if less


class Inference:
    """Serves one model."""

    def __init__(
        self,
        model: ServedModel,
        reader: RequestReader,
        generator: Generator,
        adapters: Adapters,
        workers: Workers,
        *,
        max_request_s: float,
        log_prompts: bool = False,
    ) -> None:
        """log_prompts: prompts may stand in the log, at debug level."""
        self.model = model
        self.counts = RequestCounts()
        self._reader = reader
        self._generator = generator
        self._adapters = adapters
        self._workers = workers
        self._max_request_s = max_request_s
        self._log_prompts = log_prompts

    @property
    def is_ready(self) -> bool:
        """Whether at least one prefill and one decode worker are connected."""
        return self._workers.is_ready

    async def stream(
        self, message: inference_pb2.GenerateRequest, caller: Caller
    ) -> AsyncGenerator[Response, None]:
        """Run one generation; close the iterator to end it.

        Raises:
            RequestError: what the caller should see.
        """
        with self.counted(caller.protocol, message.request_id) as fields:
            request = await self._read(message, caller, fields)
            _check_streamed(request)
            async with aclosing(self._run(request, caller, fields)) as responses:
                async for response in responses:
                    yield response

    async def generate(
        self, message: inference_pb2.GenerateRequest, caller: Caller
    ) -> inference_pb2.GenerateResponse:
        """Run one generation and return the whole of it.

        Raises:
            RequestError: what the caller should see.
        """
        with self.counted(caller.protocol, message.request_id) as fields:
            request = await self._read(message, caller, fields)
            async with aclosing(self._run(request, caller, fields)) as responses:
                whole = join([response async for response in responses], self.model.name)
            if request.sampling.chooses_best:
                keep_best(whole, request.sampling)
            return whole

    async def tokenize(self, message: inference_pb2.TokenizeRequest) -> list[int]:
        """Token ids of a text or a chat, as a generation would run them."""
        self._reader.check_model(message.model)
        return await self._reader.tokenize(message)

    def get_model(self, name: str) -> inference_pb2.GetModelResponse:
        """Facts about a served model; the empty name means the only one.

        Raises:
            NotFound: it is not served.
        """
        self._reader.check_model(name)
        format = self.model.tool_call_format
        return inference_pb2.GetModelResponse(
            model=self.model.name,
            max_context_tokens=self._workers.context_of(self.model.max_context_tokens),
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            block_size=self._workers.block_size or 0,
            default_sampling=sampling_to_proto(
                SamplingParams(**self.model.sampling_defaults)  # type: ignore[arg-type]
            ),
            tool_call_format=format.name if format else "",
            lora_adapters=self.list_adapters(),
        )

    def list_models(self) -> list[str]:
        """Names by which models can be asked for."""
        return [self.model.name]

    def list_adapters(self) -> list[str]:
        """Names of the LoRA adapters that some worker has."""
        return sorted({facts.name for facts in self._adapters.all()})

    @contextmanager
    def counted(self, protocol: str, request_id: str) -> Iterator[Fields]:
        """Count a request and log a line when the block ends, whose fields it may add to."""
        fields: Fields = {}
        try:
            with logged(logger, request_id=request_id or None, protocol=protocol) as fields:
                yield fields
        finally:
            self.counts.request_ended(protocol, str(fields["status"]))

    async def _read(
        self, message: inference_pb2.GenerateRequest, caller: Caller, fields: Fields
    ) -> Request:
        request = await self._reader.read(message, caller.default_max_tokens)
        self._note_request(request, message, fields)
        return request

    async def _run(
        self, request: Request, caller: Caller, fields: Fields
    ) -> AsyncGenerator[Response, None]:
        timeout_s = min(caller.remaining_s, self._max_request_s)
        writer = ReplyWriter(
            request.request_id,
            self.model.name,
            text=request.include_text,
            token_ids=request.include_token_ids,
        )
        async with aclosing(self._generator.replies(request, timeout_s)) as replies:
            num_tokens = 0
            async for reply in replies:
                num_tokens += len(reply.token_ids)
                self.counts.replied(reply)
                fields["completion_tokens"] = num_tokens
                if reply.started or reply.finished or reply.completed:
                    _note_reply(reply, fields)
                response = writer.message(reply)
                if response is not None:
                    yield response

    def _note_request(
        self, request: Request, message: inference_pb2.GenerateRequest, fields: Fields
    ) -> None:
        fields["request_id"] = request.request_id
        fields["run_id"] = request.run_id
        fields["prompt_tokens"] = len(request.prompt_token_ids)
        if self._log_prompts and logger.isEnabledFor(logging.DEBUG):
            shown = {"run_id": request.run_id, "prompt_token_ids": request.prompt_token_ids}
            source = {"text": message.text or None, "chat": str(message.chat) or None}
            logger.debug("prompt", extra={"fields": shown | source})


def _check_streamed(request: Request) -> None:
    """Raise InvalidRequest if the request has nothing to stream."""
    sampling = request.sampling
    if sampling.chooses_best:
        raise InvalidRequest(
            "sampling.best_of",
            f"sampling.best_of must be n, {sampling.n}, in a stream, got {sampling.best_of}: which "
            "samples are the best is known at their end; ask without one",
        )


def _note_reply(reply: Reply, fields: Fields) -> None:
    if reply.started is not None:
        fields["cached_prompt_tokens"] = reply.started.num_cached_tokens
    if reply.finished is not None:
        fields["finish_reason"] = finish_reason_name(reply.finished.reason)
    if reply.completed is not None:
        _note_completed(reply.completed, fields)


def _note_completed(completed: Completed, fields: Fields) -> None:
    report, route = completed.report, completed.report.route
    fields["transferred_prompt_tokens"] = completed.moved.transferred
    fields["queue_s"] = report.queue_s
    fields["prefill_s"] = report.prefill_s
    fields["transfer_s"] = report.transfer_s
    fields["first_token_s"] = report.first_token_s
    for role in ("prefill", "decode"):
        leg = getattr(route, role, None)
        if leg is not None:
            fields[f"{role}_worker"] = leg.worker.facts.worker_id
