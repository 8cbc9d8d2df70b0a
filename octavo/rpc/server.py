"""A gRPC server's life: listen, report health, serve until a signal, drain, stop."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo.rpc.api_keys import KeyInterceptor, KeyRing
from octavo.rpc.channels import INTERNAL_MESSAGE_BYTES, server_options
from octavo.rpc.exposure import is_local
from octavo.rpc.listening import CannotListen
from octavo.rpc.tls import TlsFiles

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """A grpc.aio server with health and reflection; add servicers to `grpc`, then `start`."""

    def __init__(
        self,
        service_names: tuple[str, ...],
        max_message_bytes: int = INTERNAL_MESSAGE_BYTES,
        *,
        shares_port: bool = False,
        keys: KeyRing | None = None,
    ) -> None:
        """service_names: full names, as in `DESCRIPTOR.services_by_name[...].full_name`.

        shares_port: with other processes that say so, too; the kernel spreads connections.
        keys: who may call; None lets everybody.
        """
        self.service_names = service_names
        self._is_alive = True
        self.is_draining = False
        options = server_options(max_message_bytes, shares_port=shares_port)
        locks = [KeyInterceptor(keys)] if keys is not None else None
        self.grpc = grpc.aio.server(options=options, interceptors=locks)
        self.health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)

    def listen(self, address: str, tls: TlsFiles | None = None) -> int:
        """Listen at one more address, from `begin` on; its port (0 for a unix socket).

        tls: unless it is a unix socket.

        Raises:
            CannotListen: somebody else does, or it is no address of this machine.
        """
        try:
            if tls is not None and not address.startswith("unix:"):
                return self.grpc.add_secure_port(address, tls.server_credentials())
            port = self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            why = "it is taken, or no address of this machine"
            raise CannotListen(address, why) from error
        if not is_local(address):
            logger.warning("%s is open to the network without encryption", address)
        return port

    async def begin(self) -> None:
        """Serve where it listens. Not ready until `set_ready`."""
        await self.health.set("", SERVING)
        await self.set_ready(False)
        await self.grpc.start()

    async def start(self, address: str, tls: TlsFiles | None = None) -> int:
        """Listen at one address and serve there; its port."""
        port = self.listen(address, tls)
        await self.begin()
        return port

    async def set_ready(self, is_ready: bool) -> None:
        """Report every service's state. A server that drains is not ready, whatever it is told."""
        is_ready = is_ready and not self.is_draining
        for name in self.service_names:
            await self.health.set(name, SERVING if is_ready else NOT_SERVING)

    async def set_alive(self, is_alive: bool) -> None:
        """Report liveness, under the empty name: whether a restart would not help."""
        if is_alive != self._is_alive:
            self._is_alive = is_alive
            await self.health.set("", SERVING if is_alive else NOT_SERVING)

    async def drain(self, grace_s: float) -> None:
        """Not ready at once; open calls may finish within the grace, then they are cancelled."""
        self.is_draining = True
        await self.set_ready(False)
        await self.grpc.stop(grace_s)


class Drainable(Protocol):
    """What takes no new work once it is told, and lets open work end."""

    async def drain(self, grace_s: float) -> None: ...


async def serve_until_signal(
    server: Drainable, grace_s: float, on_drain: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait for SIGTERM or SIGINT, then drain. A second signal ends the grace."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        await stop.wait()
        logger.info("draining for at most %.0f s", grace_s)
        draining = asyncio.create_task(_drain(server, grace_s, on_drain))
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            draining.cancel()
            await server.drain(0)
        else:
            draining.result()
        hurrying.cancel()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _drain(
    server: Drainable, grace_s: float, on_drain: Callable[[], Awaitable[None]] | None
) -> None:
    if on_drain is not None:
        await on_drain()
    await server.drain(grace_s)
