"""Many calls on one worker in one stream: a message brings what a step said to all of them.

    call --request, cancel--+                       +--> call's listener
    call -------------------+--> one stream --read--+--> call's listener

The stream is opened by the first call and again when it broke; a break ends the calls of that time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

import grpc

from octavo.internal.v1alpha1.worker_pb2 import (
    CallEnd,
    DecodeManyRequest,
    DecodeManyResponse,
    PrefillManyRequest,
    PrefillManyResponse,
)
from octavo.router.leg_call import Listener, lost
from octavo.rpc.durations import duration
from octavo.rpc.errors import STATUS_DETAILS_KEY

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")
ManyStream = (
    grpc.aio.StreamStreamCall[PrefillManyRequest, PrefillManyResponse]
    | grpc.aio.StreamStreamCall[DecodeManyRequest, DecodeManyResponse]
)
# Of one message, unless one request alone is larger: reading it holds up everyone's tokens.
MAX_MESSAGE_BYTES = 1 << 20

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class ManyCalls(Generic[Request, Response]):
    """The calls on one worker."""

    def __init__(self, open_stream: Callable[[], ManyStream], message: type[Any]) -> None:
        """message: what the stream takes, PrefillManyRequest or DecodeManyRequest."""
        self._open_stream = open_stream
        self._message = message
        self._stream: _Stream | None = None
        self._ids = count(1)

    def call(
        self, request: Request, timeout_s: float, listener: Listener[Response]
    ) -> "ManyCall[Request, Response]":
        """Start a call, which may last so long."""
        if self._stream is None or self._stream.has_ended:
            self._stream = _Stream(self._open_stream(), self._message)
        call = ManyCall[Request, Response](self._stream, next(self._ids), listener)
        self._stream.start(call, request, timeout_s)
        return call


class ManyCall(Generic[Request, Response]):
    """One of many calls."""

    def __init__(self, stream: "_Stream", call_id: int, listener: Listener[Response]) -> None:
        self.id = call_id
        self.listener = listener
        self._stream = stream

    def send(self, request: Request) -> None:
        """Send a further request; without effect once the call has ended."""
        self._stream.send(self.id, request)

    def cancel(self) -> None:
        """End the lease; the listener hears no more. Without effect once the call has ended."""
        self._stream.cancel(self.id)


class _Stream:
    """One stream from its opening to its end."""

    def __init__(self, rpc: ManyStream, message: type[Any]) -> None:
        self.has_ended = False
        self._rpc: Any = rpc
        self._message = message
        self._calls: dict[int, ManyCall[Any, Any]] = {}
        self._unsent: deque[Any] = deque()  # messages, of which only the last may grow
        self._last_bytes = 0
        self._has_items = asyncio.Event()
        self._tasks = (asyncio.create_task(self._flush()), asyncio.create_task(self._read()))

    def start(self, call: ManyCall[Any, Any], request: object, timeout_s: float) -> None:
        self._calls[call.id] = call
        self._put(call.id, request).timeout.CopyFrom(duration(timeout_s))

    def send(self, call_id: int, request: object) -> None:
        if call_id in self._calls:
            self._put(call_id, request)

    def cancel(self, call_id: int) -> None:
        if self._calls.pop(call_id, None) is not None:
            self._put(call_id, None)

    def _put(self, call_id: int, request: Any) -> Any:
        """Send an item with the next message; without a request it cancels the call."""
        num_bytes = 0 if request is None else request.ByteSize()
        if not self._unsent or self._last_bytes + num_bytes > MAX_MESSAGE_BYTES:
            self._unsent.append(self._message())
            self._last_bytes = 0
        self._last_bytes += num_bytes
        item = self._unsent[-1].items.add(call=call_id)
        if request is None:
            item.cancel.SetInParent()
        else:
            item.request.CopyFrom(request)
        self._has_items.set()
        return item

    async def _flush(self) -> None:
        try:
            while not self.has_ended:
                await self._has_items.wait()
                self._has_items.clear()
                while self._unsent:
                    await self._rpc.write(self._unsent.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            pass  # the stream broke; reading says why

    async def _read(self) -> None:
        end: Exception = lost("the worker closed the stream")
        try:
            async for message in self._rpc:
                for item in message.items:
                    self._deliver(item)
        except grpc.aio.AioRpcError as error:
            end = error
        except asyncio.CancelledError:
            end = lost("the connection was closed")
        finally:
            self.has_ended = True
            self._has_items.set()
            self._rpc.cancel()
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.listener.end(end)

    def _deliver(self, item: PrefillManyResponse.Item | DecodeManyResponse.Item) -> None:
        call = self._calls.get(item.call)
        if call is None:
            return  # it was cancelled meanwhile
        if item.HasField("response"):
            try:
                call.listener.take(item.response)
            except Exception as defect:  # one call's, and no matter of the others
                self.cancel(call.id)
                call.listener.end(defect)
        elif item.HasField("end"):
            del self._calls[item.call]
            call.listener.end(_status(item.end))


def _status(end: CallEnd) -> Exception | None:
    if end.code == 0:
        return None
    trailing = grpc.aio.Metadata()
    if end.details:
        trailing.add(STATUS_DETAILS_KEY, end.details)
    code = _CODES.get(end.code, grpc.StatusCode.UNKNOWN)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=end.message)
