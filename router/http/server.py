"""Serves the HTTP application inside the router's event loop, for as long as the router lives.

Signals are the router's: it calls `drain`.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from octavo.rpc.tls import TlsFiles

# Longer than the 60 s after which load balancers drop an idle connection: it should be they who do.
KEEP_ALIVE_S = 75
BACKLOG = 2048


class HttpServer:
    """Listens at one address."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # a request's line is written where it ends
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
            ssl_context_factory=None if tls is None else lambda _, default: tls,
        )
        self.port = int(listener.getsockname()[1])
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def drain(self, grace_s: float) -> None:
        """Take no connection any more; open requests may end within the grace, or are cut."""
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.shield(self._serving)
        if not self._serving.done():
            self._server.force_exit = True
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # each endpoint hears that its client has left
            await self._serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running_http(
    app: ASGIApp, address: str, *, shares_port: bool, tls: TlsFiles | None = None
) -> AsyncIterator[HttpServer]:
    """Serve for as long as the block lasts.

    Raises:
        OSError: the address cannot be bound.
        ValueError: the files of `tls` cannot be used.
    """
    context = tls.ssl_context() if tls is not None else None
    server = HttpServer(app, listen(address, shares_port=shares_port), context)
    try:
        yield server
    finally:
        await server.drain(0)


def listen(address: str, *, shares_port: bool) -> socket.socket:
    """A socket bound to host:port, as "127.0.0.1:8000" or "[::]:8000".

    shares_port: with other processes that say so, too; the kernel spreads connections.

    Raises:
        OSError: naming the address.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from error
    return listener
