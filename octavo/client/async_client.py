"""The asyncio client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Self, TypeVar, Unpack

import grpc

from octavo.client.adapter import Adapter
from octavo.client.completion import Completion, Delta
from octavo.client.credentials import ClientTls, key_metadata, open_async_channel
from octavo.client.error import OctavoError
from octavo.client.model_facts import ModelFacts
from octavo.client.request import Prompt, RequestFields, generate_request, tokenize_request
from octavo.client.transcript import Transcript
from octavo.inference.v1 import adapter_pb2 as adapter_pb
from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1.adapter_pb2_grpc import AdapterServiceStub
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from octavo.rpc.openai_chat import ChatFields
from octavo.sampling_params import SamplingParams

Response = TypeVar("Response")


class AsyncClient:
    """Calls a service; open one per service and share it between tasks.

    Every call takes `timeout_s`, the deadline that goes with it to the workers, and raises
    OctavoError. A cancelled task cancels its call.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        timeout_s: float | None = None,
        api_key: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Connect when the first call is made.

        Args:
            timeout_s: the deadline of calls that name none.
            api_key: sent with every call.
            tls: None is not encrypted.

        Raises:
            ValueError: api_key cannot be sent.
            OSError: a file of tls cannot be read.
        """
        self._channel = open_async_channel(address, tls)
        self._stub = InferenceServiceStub(self._channel)
        self._adapters = AdapterServiceStub(self._channel)
        self._timeout_s = timeout_s
        self._metadata = key_metadata(api_key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what still runs and disconnect."""
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        **fields: Unpack[RequestFields],
    ) -> Completion:
        """Run one generation and return the whole of it."""
        request = generate_request(prompt, params, fields)
        return Completion.of(
            await _answer(
                self._stub.Generate(request, timeout=self._s(timeout_s), metadata=self._metadata)
            )
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        **fields: Unpack[RequestFields],
    ) -> "AsyncTextStream":
        """Run one generation and read it while it grows; leaving the stream cancels it."""
        request = pb.StreamGenerateRequest(request=generate_request(prompt, params, fields))
        return AsyncTextStream(
            self._stub.StreamGenerate(request, timeout=self._s(timeout_s), metadata=self._metadata)
        )

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        add_special_tokens: bool = True,
        timeout_s: float | None = None,
        **fields: Unpack[ChatFields],
    ) -> list[int]:
        """Tokenize text or chat messages exactly as a generation would."""
        request = tokenize_request(prompt, model, add_special_tokens, fields)
        response = await _answer(
            self._stub.Tokenize(request, timeout=self._s(timeout_s), metadata=self._metadata)
        )
        return list(response.token_ids)

    async def get_model(self, model: str = "", *, timeout_s: float | None = None) -> ModelFacts:
        """Return facts about a model; by default the only one served."""
        call = self._stub.GetModel(
            pb.GetModelRequest(model=model), timeout=self._s(timeout_s), metadata=self._metadata
        )
        return ModelFacts.of(await _answer(call))

    async def list_models(self, *, timeout_s: float | None = None) -> list[str]:
        """Return the names of the served models."""
        call = self._stub.ListModels(
            pb.ListModelsRequest(), timeout=self._s(timeout_s), metadata=self._metadata
        )
        return list((await _answer(call)).models)

    async def load_adapter(
        self, name: str, path: str, *, timeout_s: float | None = None
    ) -> Adapter:
        """Load a LoRA adapter on every worker; path: its folder, relative to --lora-root."""
        request = adapter_pb.LoadAdapterRequest(name=name, path=path)
        call = self._adapters.LoadAdapter(
            request, timeout=self._s(timeout_s), metadata=self._metadata
        )
        return Adapter.of((await _answer(call)).adapter)

    async def unload_adapter(self, name: str, *, timeout_s: float | None = None) -> None:
        """Let no new request choose an adapter; those that run with it finish."""
        request = adapter_pb.UnloadAdapterRequest(name=name)
        await _answer(
            self._adapters.UnloadAdapter(
                request, timeout=self._s(timeout_s), metadata=self._metadata
            )
        )

    async def get_adapter(self, name: str, *, timeout_s: float | None = None) -> Adapter:
        """Return a loaded adapter."""
        request = adapter_pb.GetAdapterRequest(name=name)
        call = self._adapters.GetAdapter(
            request, timeout=self._s(timeout_s), metadata=self._metadata
        )
        return Adapter.of((await _answer(call)).adapter)

    async def list_adapters(self, *, timeout_s: float | None = None) -> list[Adapter]:
        """Return what is loaded, by name."""
        request = adapter_pb.ListAdaptersRequest()
        call = self._adapters.ListAdapters(
            request, timeout=self._s(timeout_s), metadata=self._metadata
        )
        return [Adapter.of(each) for each in (await _answer(call)).adapters]

    def _s(self, timeout_s: float | None) -> float | None:
        return self._timeout_s if timeout_s is None else timeout_s


class AsyncTextStream(AsyncIterator[Delta]):
    """Deltas of one generation; ends its call when closed, left or dropped."""

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[pb.StreamGenerateRequest, pb.StreamGenerateResponse]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._transcript = Transcript()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Dropping a grpc.aio call leaves its request running; and this may be any thread.
        call = getattr(self, "_call", None)
        if call is not None and not call.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call.cancel)

    @property
    def completion(self) -> Completion:
        """The whole output, once the stream was read to its end."""
        return self._transcript.completion

    async def __anext__(self) -> Delta:
        try:
            # read() gives EOF, which is no message, once the call has ended well.
            while isinstance(message := await self._call.read(), pb.StreamGenerateResponse):
                delta = self._transcript.take(message)
                if delta is not None:
                    return delta
        except grpc.RpcError as error:
            raise OctavoError.of(error) from error
        except asyncio.CancelledError:
            self.close()
            raise
        self._transcript.check_complete()
        raise StopAsyncIteration

    def close(self) -> None:
        """Cancel the call; harmless once it has ended."""
        self._call.cancel()


async def _answer(call: Awaitable[Response]) -> Response:
    try:
        return await call
    except grpc.RpcError as error:
        raise OctavoError.of(error) from error
