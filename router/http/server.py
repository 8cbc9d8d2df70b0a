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

from octavo.router.doors import with_port
from octavo.rpc.listening import BACKLOG

# Longer than the 60 s after which load balancers drop an idle connection: it should be they who do.
KEEP_ALIVE_S = 75


class HttpServer:
    """Listens at one address."""

    def __init__(
        self, app: ASGIApp, address: str, listener: socket.socket, tls: ssl.SSLContext | None
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
        self.address = with_port(address, listener.getsockname()[1])
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
    app: ASGIApp, address: str, listener: socket.socket, tls: ssl.SSLContext | None
) -> AsyncIterator[HttpServer]:
    """Serve at the listener of the address for as long as the block lasts."""
    server = HttpServer(app, address, listener, tls)
    try:
        yield server
    finally:
        await server.drain(0)
