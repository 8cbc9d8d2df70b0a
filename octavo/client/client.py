"""The blocking client: the same calls as `AsyncClient`, from any thread."""

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar, Unpack

import grpc

from octavo.client.adapter import Adapter
from octavo.client.completion import Completion, Delta
from octavo.client.credentials import ClientTls, key_metadata, open_channel
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


class Client:
    """Calls a service; open one per service and share it between threads.

    Every call takes `timeout_s`, the deadline that goes with it to the workers, and raises
    OctavoError.
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
        self._channel = open_channel(address, tls)
        self._stub = InferenceServiceStub(self._channel)
        self._adapters = AdapterServiceStub(self._channel)
        self._timeout_s = timeout_s
        self._metadata = key_metadata(api_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what still runs and disconnect."""
        self._channel.close()

    def generate(
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
            _answer(self._stub.Generate.future(request, self._s(timeout_s), self._metadata))
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout_s: float | None = None,
        **fields: Unpack[RequestFields],
    ) -> "TextStream":
        """Run one generation and read it while it grows; leaving the stream cancels it."""
        request = pb.StreamGenerateRequest(request=generate_request(prompt, params, fields))
        return TextStream(
            self._stub.StreamGenerate(request, timeout=self._s(timeout_s), metadata=self._metadata)
        )

    def tokenize(
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
        return list(
            _answer(
                self._stub.Tokenize.future(request, self._s(timeout_s), self._metadata)
            ).token_ids
        )

    def get_model(self, model: str = "", *, timeout_s: float | None = None) -> ModelFacts:
        """Return facts about a model; by default the only one served."""
        request = pb.GetModelRequest(model=model)
        return ModelFacts.of(
            _answer(self._stub.GetModel.future(request, self._s(timeout_s), self._metadata))
        )

    def list_models(self, *, timeout_s: float | None = None) -> list[str]:
        """Return the names of the served models."""
        request = pb.ListModelsRequest()
        return list(
            _answer(
                self._stub.ListModels.future(request, self._s(timeout_s), self._metadata)
            ).models
        )

    def load_adapter(self, name: str, path: str, *, timeout_s: float | None = None) -> Adapter:
        """Load a LoRA adapter on every worker; path: its folder, relative to --lora-root."""
        request = adapter_pb.LoadAdapterRequest(name=name, path=path)
        call = self._adapters.LoadAdapter.future(request, self._s(timeout_s), self._metadata)
        return Adapter.of(_answer(call).adapter)

    def unload_adapter(self, name: str, *, timeout_s: float | None = None) -> None:
        """Let no new request choose an adapter; those that run with it finish."""
        request = adapter_pb.UnloadAdapterRequest(name=name)
        _answer(self._adapters.UnloadAdapter.future(request, self._s(timeout_s), self._metadata))

    def get_adapter(self, name: str, *, timeout_s: float | None = None) -> Adapter:
        """Return a loaded adapter."""
        request = adapter_pb.GetAdapterRequest(name=name)
        call = self._adapters.GetAdapter.future(request, self._s(timeout_s), self._metadata)
        return Adapter.of(_answer(call).adapter)

    def list_adapters(self, *, timeout_s: float | None = None) -> list[Adapter]:
        """Return what is loaded, by name."""
        request = adapter_pb.ListAdaptersRequest()
        call = self._adapters.ListAdapters.future(request, self._s(timeout_s), self._metadata)
        return [Adapter.of(each) for each in _answer(call).adapters]

    def _s(self, timeout_s: float | None) -> float | None:
        return self._timeout_s if timeout_s is None else timeout_s


class StreamCall(Protocol):
    """A server-streaming call of the blocking API."""

    def __next__(self) -> pb.StreamGenerateResponse: ...
    def cancel(self) -> bool: ...


class TextStream(Iterator[Delta]):
    """Deltas of one generation; ends its call when closed, left or dropped."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self._transcript = Transcript()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.close()

    @property
    def completion(self) -> Completion:
        """The whole output, once the stream was read to its end."""
        return self._transcript.completion

    def __next__(self) -> Delta:
        try:
            while True:
                delta = self._transcript.take(next(self._call))
                if delta is not None:
                    return delta
        except grpc.RpcError as error:
            raise OctavoError.of(error) from error
        except StopIteration:
            self._transcript.check_complete()
            raise

    def close(self) -> None:
        """Cancel the call; harmless once it has ended."""
        self._call.cancel()


def _answer(call: "grpc.Future[Response]") -> Response:
    """Wait for a unary call; an interrupt (Ctrl-C) cancels it."""
    try:
        return call.result()
    except grpc.RpcError as error:
        raise OctavoError.of(error) from error
    finally:
        call.cancel()
