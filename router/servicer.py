"""The public API: message in, generation, messages out."""

import math
from contextlib import aclosing

import grpc

from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.router.generation import Generator
from octavo.router.model import ServedModel
from octavo.router.replies import ReplyWriter, Response, join, keep_best
from octavo.router.request import Request, RequestReader
from octavo.router.slow_reader import patient_write
from octavo.router.workers import Workers
from octavo.rpc.errors import InvalidRequest, errors_to_status
from octavo.rpc.sampling import sampling_to_proto
from octavo.sampling_params import SamplingParams

# Typed once: what a client sends, what it gets.
StreamContext = grpc.aio.ServicerContext[inference_pb2.StreamGenerateRequest, Response]
UnaryContext = grpc.aio.ServicerContext[
    inference_pb2.GenerateRequest, inference_pb2.GenerateResponse
]
TokenizeContext = grpc.aio.ServicerContext[
    inference_pb2.TokenizeRequest, inference_pb2.TokenizeResponse
]
ModelContext = grpc.aio.ServicerContext[
    inference_pb2.GetModelRequest, inference_pb2.GetModelResponse
]
ModelsContext = grpc.aio.ServicerContext[
    inference_pb2.ListModelsRequest, inference_pb2.ListModelsResponse
]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves one model."""

    def __init__(
        self,
        model: ServedModel,
        reader: RequestReader,
        generator: Generator,
        workers: Workers,
        *,
        max_request_s: float,
        slow_reader_s: float,
    ) -> None:
        self._model = model
        self._reader = reader
        self._generator = generator
        self._workers = workers
        self._max_request_s = max_request_s
        self._slow_reader_s = slow_reader_s

    async def StreamGenerate(
        self, request: inference_pb2.StreamGenerateRequest, context: StreamContext
    ) -> None:
        async with errors_to_status(context):
            resolved = await self._reader.read(request.request)
            _check_streamed(resolved)
            timeout_s = self._timeout_s(context.time_remaining())
            writer = self._writer(resolved)
            async with (
                aclosing(self._generator.replies(resolved, timeout_s)) as replies,
                patient_write(context, self._slow_reader_s) as write,
            ):
                async for reply in replies:
                    message = writer.message(reply)
                    if message is not None:
                        await write(message)

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: UnaryContext
    ) -> inference_pb2.GenerateResponse:
        messages: list[Response] = []
        async with errors_to_status(context):
            resolved = await self._reader.read(request)
            timeout_s = self._timeout_s(context.time_remaining())
            writer = self._writer(resolved)
            async with aclosing(self._generator.replies(resolved, timeout_s)) as replies:
                async for reply in replies:
                    message = writer.message(reply)
                    if message is not None:
                        messages.append(message)
        whole = join(messages, self._model.name)
        if messages and resolved.sampling.chooses_best:
            keep_best(whole, resolved.sampling)
        return whole

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: TokenizeContext
    ) -> inference_pb2.TokenizeResponse:
        response = inference_pb2.TokenizeResponse()
        async with errors_to_status(context):
            self._reader.check_model(request.model)
            response.token_ids.extend(await self._reader.tokenize(request))
        return response

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: ModelContext
    ) -> inference_pb2.GetModelResponse:
        response = inference_pb2.GetModelResponse()
        async with errors_to_status(context):
            self._reader.check_model(request.model)
            workers = self._workers
            format = self._model.tool_call_format
            response = inference_pb2.GetModelResponse(
                model=self._model.name,
                max_context_tokens=workers.context_of(self._model.max_context_tokens),
                vocab_size=self._model.vocab_size,
                eos_token_ids=self._model.eos_token_ids,
                block_size=workers.block_size or 0,
                default_sampling=sampling_to_proto(
                    SamplingParams(**self._model.sampling_defaults)  # type: ignore[arg-type]
                ),
                tool_call_format=format.name if format else "",
                lora_adapters=sorted({a.name for w in workers.connected for a in w.adapters}),
            )
        return response

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: ModelsContext
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=[self._model.name])

    def _timeout_s(self, remaining_s: float | None) -> float:
        return min(math.inf if remaining_s is None else remaining_s, self._max_request_s)

    def _writer(self, request: Request) -> ReplyWriter:
        return ReplyWriter(
            request.request_id,
            self._model.name,
            text=request.include_text,
            token_ids=request.include_token_ids,
        )


def _check_streamed(request: Request) -> None:
    """Raise InvalidRequest if the request has nothing to stream."""
    sampling = request.sampling
    if sampling.chooses_best:
        raise InvalidRequest(
            "sampling.best_of",
            f"sampling.best_of must be n, {sampling.n}, in a stream, got {sampling.best_of}: which "
            "samples are the best is known at their end; ask with Generate",
        )
