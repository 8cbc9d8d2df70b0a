"""Asks a router, and one router alone, for the moments that `octavo top` shows."""

import time
from types import TracebackType
from typing import Self

import grpc

from octavo.client.channel import OPTIONS
from octavo.client.credentials import ClientTls, key_metadata, open_async_channel
from octavo.client.error import OctavoError
from octavo.inference.v1 import fleet_pb2
from octavo.inference.v1.fleet_pb2_grpc import FleetServiceStub
from octavo.top.snapshot import Snapshot

TIMEOUT_S = 5.0
MAX_REQUESTS = 200  # more rows than a terminal has
# Of several routers behind one name the same one answers, as long as it lives; and one that is gone
# is told at once, not tried again in silence.
ONE_ROUTER = [each for each in OPTIONS if each[0] != "grpc.service_config"]


class Source:
    """One connection to a service; made again by itself when it breaks."""

    def __init__(self, address: str, api_key: str | None, tls: ClientTls | None) -> None:
        """Raise ValueError or OSError as `Client` does."""
        self.address = address
        self._metadata = key_metadata(api_key)
        self._channel = open_async_channel(address, tls, ONE_ROUTER)
        self._stub = FleetServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def snapshot(self) -> Snapshot:
        """This moment; raise OctavoError if the router does not tell it."""
        request = fleet_pb2.GetFleetRequest(max_requests=MAX_REQUESTS)
        try:
            reply = await self._stub.GetFleet(request, timeout=TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise OctavoError.of(error) from error
        return Snapshot.of(reply, time.monotonic())
