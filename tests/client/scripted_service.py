"""A service that answers as the test tells it, over real gRPC on loopback."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1 import inference_pb2_grpc
from octavo.rpc.errors import RequestError, errors_to_status
from octavo.rpc.server import Server

WORDS = ["A", " paged", " cache", "."]
USAGE = pb.Usage(prompt_tokens=5, completion_tokens=4, cached_prompt_tokens=2)


class ScriptedService(inference_pb2_grpc.InferenceServiceServicer):
    """Answers `WORDS`, after raising `failures` one call each.

    With `is_stuck` a generation stops after two words until its call is ended.
    """

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.tokenize_requests: list[pb.TokenizeRequest] = []
        self.failures: deque[RequestError] = deque()
        self.late_failure: RequestError | None = None
        self.is_stuck = False
        self.tool_calls: list[pb.ToolCall] = []  # streamed behind the words
        self.ended = asyncio.Event()  # a generation was cancelled
        self.time_remaining_s: float | None = None
        self.address = ""

    async def Generate(self, request, context):  # type: ignore[no-untyped-def]
        async with errors_to_status(context), self._watch():
            self._note(request, context)
            if self.is_stuck:
                await asyncio.Event().wait()
            timing = pb.Timing(prefill_worker="prefill-0")
            timing.total.FromMilliseconds(1500)
            candidates = [
                pb.Candidate(
                    index=index,
                    text="".join(WORDS),
                    token_ids=[1, 2, 3, 4],
                    finish_reason=pb.FINISH_REASON_STOP,
                    matched_stop_token_id=4,
                )
                for index in range(request.sampling.n or 1)
            ]
            return pb.GenerateResponse(
                request_id=request.request_id,
                model="tiny",
                candidates=candidates,
                usage=USAGE,
                timing=timing,
            )

    async def StreamGenerate(self, request, context):  # type: ignore[no-untyped-def]
        async with errors_to_status(context), self._watch():
            self._note(request.request, context)
            response = pb.StreamGenerateResponse
            yield response(started=response.Started(model="tiny", prompt_tokens=5))
            for token_id, word in enumerate(WORDS, start=1):
                if token_id == 3 and self.is_stuck:
                    await asyncio.Event().wait()
                if token_id == 3 and self.late_failure is not None:
                    raise self.late_failure
                yield response(delta=response.Delta(text=word, token_ids=[token_id]))
            if self.tool_calls:
                yield response(delta=response.Delta(tool_calls=self.tool_calls))
            yield response(
                finished=response.Finished(
                    finish_reason=pb.FINISH_REASON_STOP_SEQUENCE, matched_stop_text="END"
                )
            )
            yield response(
                request_id=request.request.request_id, completed=response.Completed(usage=USAGE)
            )

    async def Tokenize(self, request, context):  # type: ignore[no-untyped-def]
        self.tokenize_requests.append(request)
        return pb.TokenizeResponse(token_ids=[7, 8])

    async def GetModel(self, request, context):  # type: ignore[no-untyped-def]
        async with errors_to_status(context):
            if self.failures:
                raise self.failures.popleft()
            return pb.GetModelResponse(
                model="tiny",
                max_context_tokens=2048,
                vocab_size=100,
                eos_token_ids=[2],
                block_size=16,
                default_sampling=pb.SamplingParams(temperature=0.5, top_k=40),
            )

    async def ListModels(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListModelsResponse(models=["tiny"])

    def _note(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        self.requests.append(request)
        self.time_remaining_s = context.time_remaining()
        if self.failures:
            raise self.failures.popleft()

    @asynccontextmanager
    async def _watch(self) -> AsyncIterator[None]:
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.ended.set()
            raise


@asynccontextmanager
async def scripted_service() -> AsyncIterator[ScriptedService]:
    service = ScriptedService()
    server = Server(("octavo.inference.v1.InferenceService",))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server.grpc)
    service.address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    try:
        yield service
    finally:
        await server.grpc.stop(None)
