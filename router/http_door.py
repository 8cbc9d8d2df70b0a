"""A router's HTTP port, where what it needs is installed."""

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry

from octavo.router.config import RouterConfig
from octavo.router.doors import open_door
from octavo.router.inference import Inference
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.listening import open_listener
from octavo.rpc.server import Server

if TYPE_CHECKING:
    from octavo.router.http.server import HttpServer

logger = logging.getLogger(__name__)


class HttpMissing(Exception):
    """HTTP is to be served, and the libraries for it are not there."""


class HttpParts(NamedTuple):
    """What the HTTP port shows."""

    inference: Inference
    grpc: Server  # HTTP is ready when it is
    keys: KeyRing | None
    metrics: CollectorRegistry


async def open_http(
    config: RouterConfig, parts: HttpParts, stack: AsyncExitStack
) -> "HttpServer | None":
    """The HTTP port, if it is wanted.

    Raises:
        HttpMissing: what it needs is not installed.
        CannotListen: nowhere.
        ValueError: the files of the certificate cannot be used.
    """
    if config.http_address is None or not config.serves_http:
        return None
    try:
        from octavo.router.http.app import make_app
        from octavo.router.http.server import running_http
    except ImportError as error:
        raise HttpMissing(f"http_address needs `pip install 'octavo[http]'`: {error}") from error
    app = make_app(
        parts.inference,
        is_ready=lambda: parts.inference.is_ready and not parts.grpc.is_draining,
        slow_reader_s=config.slow_reader_s,
        registry=parts.metrics,
        keys=parts.keys,
    )
    context = config.public_tls.ssl_context() if config.public_tls is not None else None
    listen = partial(open_listener, shares_port=config.shares_port)
    address, listener = open_door(config, config.http_address, listen)
    http = await stack.enter_async_context(running_http(app, address, listener, context))
    logger.info("serving HTTP on %s", http.address)
    return http
