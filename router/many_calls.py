"""Many Decode calls on one worker in one stream: a message brings what a step said to all of them.

    call --start, stop, cancel--+                       +--> call's responses
    call -----------------------+--> one stream --read--+--> call's responses

The stream is opened by the first call and again when it broke; a break ends the calls of that time.
"""

import asyncio
from collections import deque
from typing import Self

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.internal.v1alpha1 import worker_pb2_grpc
from octavo.internal.v1alpha1.worker_pb2 import (
    DecodeManyRequest,
    DecodeManyResponse,
    DecodeRequest,
    DecodeResponse,
)
from octavo.rpc.errors import STATUS_DETAILS_KEY

Item = DecodeManyRequest.Item
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class ManyCalls:
    """The calls on one worker."""

    def __init__(self, stub: worker_pb2_grpc.DecodeServiceStub) -> None:
        self._stub = stub
        self._stream: _Stream | None = None
        self._last_id = 0

    def call(self, timeout_s: float) -> "ManyCall":
        """A call; nothing is sent before its first `write`."""
        if self._stream is None or self._stream.has_ended:
            self._stream = _Stream(self._stub)
        self._last_id += 1
        return self._stream.call(self._last_id, timeout_s)


class ManyCall:
    """One of many calls, used as a call with a stream of its own.

    What it says waits here until it is read: at most its request's output.
    """

    def __init__(self, stream: "_Stream", call_id: int, timeout_s: float) -> None:
        self._stream = stream
        self._id = call_id
        self._timeout: Duration | None = Duration()
        self._timeout.FromNanoseconds(max(round(timeout_s * 1e9), 0))
        self._responses: deque[DecodeResponse] = deque()
        self._end: BaseException | None = None
        self._news = asyncio.Event()

    async def write(self, request: DecodeRequest) -> None:
        """Send a message; without effect once the call has ended."""
        if self._end is None:
            timeout, self._timeout = self._timeout, None
            self._stream.send(Item(call=self._id, request=request, timeout=timeout))

    async def done_writing(self) -> None:
        """The worker need not know."""

    def cancel(self) -> bool:
        """End the lease; a reader gets CancelledError. False if the call had ended."""
        if self._end is not None:
            return False
        self._stream.forget(self._id)
        if self._timeout is None:  # the worker knows of it
            self._stream.send(Item(call=self._id, cancel=DecodeManyRequest.Cancel()))
        self.end(asyncio.CancelledError())
        return True

    def take(self, response: DecodeResponse) -> None:
        self._responses.append(response)
        self._news.set()

    def end(self, end: BaseException) -> None:
        """How the call ended: StopAsyncIteration, or what its reader shall get."""
        self._end = end
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DecodeResponse:
        while not self._responses:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        return self._responses.popleft()


class _Stream:
    """One DecodeMany stream from its opening to its end."""

    def __init__(self, stub: worker_pb2_grpc.DecodeServiceStub) -> None:
        self.has_ended = False
        self._calls: dict[int, ManyCall] = {}
        self._items: list[Item] = []
        self._has_items = asyncio.Event()
        self._rpc = stub.DecodeMany()
        self._tasks = (asyncio.create_task(self._flush()), asyncio.create_task(self._read()))

    def call(self, call_id: int, timeout_s: float) -> ManyCall:
        call = self._calls[call_id] = ManyCall(self, call_id, timeout_s)
        return call

    def forget(self, call_id: int) -> None:
        self._calls.pop(call_id, None)

    def send(self, item: Item) -> None:
        """Send an item with the next message."""
        self._items.append(item)
        self._has_items.set()

    async def _flush(self) -> None:
        try:
            while not self.has_ended:
                await self._has_items.wait()
                self._has_items.clear()
                items, self._items = self._items, []
                await self._rpc.write(DecodeManyRequest(items=items))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            pass  # the stream broke; reading says why

    async def _read(self) -> None:
        end: Exception = _error(grpc.StatusCode.UNAVAILABLE, "the worker closed the stream")
        try:
            async for message in self._rpc:
                for item in message.items:
                    self._deliver(item)
        except grpc.aio.AioRpcError as error:
            end = error
        except asyncio.CancelledError:
            end = _error(grpc.StatusCode.UNAVAILABLE, "the connection was closed")
        finally:
            self.has_ended = True
            self._has_items.set()
            self._rpc.cancel()
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.end(end)

    def _deliver(self, item: DecodeManyResponse.Item) -> None:
        call = self._calls.get(item.call)
        if call is None:
            return  # it was cancelled meanwhile
        if item.HasField("response"):
            call.take(item.response)
        elif item.HasField("end"):
            self.forget(item.call)
            call.end(_status(item.end))


def _status(end: DecodeManyResponse.End) -> Exception:
    if end.code == 0:
        return StopAsyncIteration()
    return _error(_CODES.get(end.code, grpc.StatusCode.UNKNOWN), end.message, end.details)


def _error(code: grpc.StatusCode, message: str, details: bytes = b"") -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata()
    if details:
        trailing.add(STATUS_DETAILS_KEY, details)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=message)
