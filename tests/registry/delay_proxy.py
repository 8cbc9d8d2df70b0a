"""A TCP proxy that holds back replies, to catch a client between a command and its reply."""

import asyncio
from typing import Self

from octavo.registry.connection import RedisSettings
from registry.redis_server import free_port


class DelayProxy:
    """Forwards to 127.0.0.1:port; every piece from the server waits `delay_s` before it goes on."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self._target_port = port
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> RedisSettings:
        return RedisSettings(f"redis://127.0.0.1:{self._port}/0")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(
            "127.0.0.1", self._target_port
        )
        for pump in (
            self._pump(reader, upstream_writer, delays=False),
            self._pump(upstream_reader, writer, delays=True),
        ):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delays: bool
    ) -> None:
        try:
            while piece := await reader.read(65536):
                if delays:
                    await asyncio.sleep(self.delay_s)
                writer.write(piece)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()
