"""The public gRPC API: message in, messages out."""

import math
from contextlib import aclosing

import grpc

from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.router.inference import Caller, Inference
from octavo.router.replies import Response
from octavo.router.slow_reader import patient_write
from octavo.rpc.errors import errors_to_status

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

    def __init__(self, inference: Inference, *, slow_reader_s: float) -> None:
        self._inference = inference
        self._slow_reader_s = slow_reader_s

    async def StreamGenerate(
        self, request: inference_pb2.StreamGenerateRequest, context: StreamContext
    ) -> None:
        caller = _caller(context.time_remaining())
        async with (
            errors_to_status(context),
            aclosing(self._inference.stream(request.request, caller)) as messages,
            patient_write(context, self._slow_reader_s) as write,
        ):
            async for message in messages:
                await write(message)

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: UnaryContext
    ) -> inference_pb2.GenerateResponse:
        response = inference_pb2.GenerateResponse()
        async with errors_to_status(context):
            caller = _caller(context.time_remaining())
            response = await self._inference.generate(request, caller)
        return response

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: TokenizeContext
    ) -> inference_pb2.TokenizeResponse:
        response = inference_pb2.TokenizeResponse()
        async with errors_to_status(context):
            response.token_ids.extend(await self._inference.tokenize(request))
        return response

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: ModelContext
    ) -> inference_pb2.GetModelResponse:
        response = inference_pb2.GetModelResponse()
        async with errors_to_status(context):
            response = self._inference.get_model(request.model)
        return response

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: ModelsContext
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=self._inference.list_models())


def _caller(remaining_s: float | None) -> Caller:
    return Caller(protocol="grpc", remaining_s=math.inf if remaining_s is None else remaining_s)
