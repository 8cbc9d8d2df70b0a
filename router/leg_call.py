"""A leg's call on a worker: a stream of its own, or a part of the stream of all calls there.

    request --> call --> worker --> listener.take, take, ..., end

Nothing waits for a response: the listener is called with each, so that a leg needs no task.
"""

import asyncio
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import grpc

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", contravariant=True)


class Listener(Protocol[Response]):
    """Who hears what a worker says in a call."""

    def take(self, response: Response) -> None:
        """The next response. What this raises ends the call, with `end`."""

    def end(self, error: Exception | None) -> None:
        """The last word, unless the call was cancelled: None if it ended well."""


class LegCall(Protocol[Request]):
    """An open call. It is a lease, which its end or `cancel` gives back."""

    def send(self, request: Request) -> None:
        """Send a further request; without effect once the call has ended."""

    def cancel(self) -> None:
        """End the lease; the listener hears no more. Without effect once the call has ended."""


class OwnCall(Generic[Request]):
    """A call with a stream of its own, which a task reads: for workers that know no other."""

    def __init__(self, rpc: Any, listener: Listener[Any]) -> None:
        """rpc: a call of grpc.aio that streams its responses."""
        self._rpc = rpc
        self._listener = listener
        self._is_cancelled = False
        self._unsent: list[Request] = []
        self._writing: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    def send(self, request: Request) -> None:
        self._unsent.append(request)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    def cancel(self) -> None:
        self._is_cancelled = True
        self._rpc.cancel()  # a dropped call would leave its handler running

    async def _write(self) -> None:
        # Of a stream that has ended reading says why.
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, asyncio.CancelledError):
            while self._unsent:
                await self._rpc.write(self._unsent.pop(0))

    async def _read(self) -> None:
        end: Exception | None = None
        try:
            async for response in self._rpc:
                if not self._is_cancelled:
                    self._listener.take(response)
        except asyncio.CancelledError:
            end = lost("the connection was closed")
        except Exception as error:
            self._rpc.cancel()
            end = error
        if not self._is_cancelled:
            self._listener.end(end)


def lost(why: str) -> grpc.aio.AioRpcError:
    """What a listener gets when a call ended by no status of the worker's."""
    none = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, details=why)
