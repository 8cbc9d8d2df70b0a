"""The HTTP application: which path leads where.

    POST /v1/completions, /v1/chat/completions     Endpoint, through the same code as gRPC
    GET  /v1/models, /v1/models/NAME, /health, /metrics

What every request has to pass (who asks, what it may do) is middleware: pure ASGI, since
Starlette's BaseHTTPMiddleware would put a task and a queue between an event and its client.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.metrics.registry import PLAIN_TEXT
from octavo.router.http import chat_request, completion_request
from octavo.router.http.chats import Chats
from octavo.router.http.completions import Completions
from octavo.router.http.endpoint import Endpoint, error_response, json_response
from octavo.router.http.errors import plain_error
from octavo.router.http.keys import KeyGate
from octavo.router.inference import Inference
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.errors import NotFound


def make_app(
    inference: Inference,
    *,
    is_ready: Callable[[], bool],
    slow_reader_s: float,
    registry: CollectorRegistry,
    keys: KeyRing | None = None,
) -> Starlette:
    """Serve one model.

    is_ready: whether requests should come here.
    registry: what /metrics shows.
    keys: who may ask; None lets everybody.
    """
    models = Models(inference)
    routes = [
        Route("/v1/completions", _completions(inference, slow_reader_s), methods=["POST"]),
        Route("/v1/chat/completions", _chats(inference, slow_reader_s), methods=["POST"]),
        Route("/v1/models", models.all),
        Route("/v1/models/{name:path}", models.one),
        Route("/health", Health(is_ready).get),
        Route("/metrics", Metrics(registry).get),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(KeyGate, keys=keys)] if keys is not None else [],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_defect},
    )


def _completions(inference: Inference, slow_reader_s: float) -> Endpoint:
    return Endpoint(
        inference,
        completion_request.read_completion,
        Completions,
        default_max_tokens=completion_request.DEFAULT_MAX_TOKENS,
        slow_reader_s=slow_reader_s,
    )


def _chats(inference: Inference, slow_reader_s: float) -> Endpoint:
    tokenizer = inference.model.tokenizer
    takes_parts = tokenizer.has_chat_template and tokenizer.chat_template.takes_content_parts
    return Endpoint(
        inference,
        partial(chat_request.read_chat, takes_parts=takes_parts),
        Chats,
        default_max_tokens=chat_request.DEFAULT_MAX_TOKENS,
        slow_reader_s=slow_reader_s,
    )


class Models:
    """What is served."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._since = int(time.time())

    async def all(self, request: Request) -> Response:
        inference = self._inference
        data = [self._describe(name) for name in inference.list_models()]
        data += [self._describe_adapter(name) for name in inference.list_adapters()]
        return json_response(200, {"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        inference = self._inference
        is_adapter = name != inference.model.name and name in inference.list_adapters()
        try:
            describe = self._describe_adapter if is_adapter else self._describe
            return json_response(200, describe(name))
        except NotFound as error:
            return error_response(error)

    def _describe(self, name: str) -> dict[str, object]:
        facts = self._inference.get_model(name)
        return {
            "id": name,
            "object": "model",
            "created": self._since,
            "owned_by": "octavo",
            "parent": None,
            "max_model_len": facts.max_context_tokens,
        }

    def _describe_adapter(self, name: str) -> dict[str, object]:
        base = self._inference.model.name
        return self._describe(base) | {"id": name, "parent": base}


class Health:
    """Whether requests should come here, for load balancers."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def get(self, request: Request) -> Response:
        if self._is_ready():
            return json_response(200, {"status": "ok"})
        return json_response(503, {"status": "not ready"}, {"retry-after": "1"})


class Metrics:
    """The router's figures, for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def get(self, request: Request) -> Response:
        encode, media_type = choose_encoder(PLAIN_TEXT)
        text = await asyncio.to_thread(encode, self._registry)  # streams need not wait
        return Response(text, headers={"content-type": media_type})


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    message = f"{where}: {error.detail}"
    headers = dict(error.headers or {})
    return json_response(error.status_code, plain_error(error.status_code, message), headers)


async def _on_defect(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, by uvicorn."""
    return json_response(500, plain_error(500, "internal error; see the server's log"))
