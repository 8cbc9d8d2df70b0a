"""Serves many calls in one stream: what all of them say in a step goes out in one message.

    one task a call:  handler --write--+
                      handler --write--+--> items --> [flush] --> one message
    stream --> [read] --first item--> a new task;  cancel, a broken stream --> its end

A call is a lease as a stream is one: its handler runs in a task of its own, which is cancelled when
the caller cancels, when the call's time is over and when the stream breaks. PrefillMany and
DecodeMany differ in what a request and a response are, and in nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Ids
from contextlib import suppress
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.rpc import code_pb2

from octavo.internal.v1alpha1.worker_pb2 import (
    CallEnd,
    DecodeManyRequest,
    DecodeManyResponse,
    PrefillManyRequest,
    PrefillManyResponse,
)
from octavo.rpc.errors import STATUS_DETAILS_KEY, AbortableContext

logger = logging.getLogger(__name__)

# Items at most that wait for a caller who reads too slowly; then its calls wait.
MAX_UNSENT = 4096

Response = TypeVar("Response", contravariant=True)


class CallContext(AbortableContext, Protocol[Response]):
    """What a handler needs of its stream, be it one of its own or a part of another."""

    # The next request, or grpc.aio.EOF.
    async def read(self) -> object: ...

    async def write(self, message: Response) -> None: ...


# Takes a call's first request, which `read` gives as well, and the call.
Handler = Callable[[Any, CallContext[Any]], Awaitable[None]]
PrefillManyContext = grpc.aio.ServicerContext[PrefillManyRequest, PrefillManyResponse]
DecodeManyContext = grpc.aio.ServicerContext[DecodeManyRequest, DecodeManyResponse]
ManyRequest = PrefillManyRequest | DecodeManyRequest
# Either of their items: the fields are alike, but for the types of request and response.
RequestItem = PrefillManyRequest.Item | DecodeManyRequest.Item


async def serve_many_prefills(context: PrefillManyContext, handler: Handler) -> None:
    """Serve a PrefillMany stream until its caller closes or breaks it; then no call is open."""
    await _ManyCalls(context, PrefillManyResponse, handler).serve()


async def serve_many_decodes(context: DecodeManyContext, handler: Handler) -> None:
    """Serve a DecodeMany stream until its caller closes or breaks it; then no call is open."""
    await _ManyCalls(context, DecodeManyResponse, handler).serve()


class _ManyCalls:
    """The open calls of one stream."""

    def __init__(
        self,
        context: PrefillManyContext | DecodeManyContext,
        message: type[Any],
        handler: Handler,
    ) -> None:
        """message: DecodeManyResponse or PrefillManyResponse."""
        self._context: Any = context
        self._message = message
        self._handler = handler
        self._calls: dict[int, Call] = {}
        self._unsent: Any = message()
        self._has_items = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def serve(self) -> None:
        flushing = asyncio.create_task(self._flush())
        try:
            while isinstance(message := await self._context.read(), ManyRequest):
                for item in message.items:
                    self._take(item)
        finally:
            flushing.cancel()
            await self._end_all()
            await asyncio.wait({flushing})

    def respond(self, call_id: int, response: object) -> None:
        """Send a call's response with the next message."""
        self._unsent.items.add(call=call_id, response=response)
        self._told()

    async def wait_for_room(self) -> None:
        await self._has_room.wait()

    def ended(self, call_id: int, end: CallEnd | None) -> None:
        """A call's handler has ended; its caller is told unless it left."""
        del self._calls[call_id]
        if end is not None:
            self._unsent.items.add(call=call_id, end=end)
            self._told()

    def _take(self, item: RequestItem) -> None:
        """Do what an item of the caller says."""
        call = self._calls.get(item.call)
        if item.HasField("cancel"):
            if call is not None:
                call.cancel()
        elif call is not None:
            call.requests.put_nowait(item.request)
        elif item.HasField("timeout"):  # with a call's first request alone
            call = self._calls[item.call] = Call(self, item)
            call.requests.put_nowait(item.request)
            call.start(self._handler, item.request)
        # Anything else is meant for a call that has just ended.

    def put_tokens(self, call_id: int, first_index: int, token_ids: Ids[int], sample: int) -> bool:
        """Send tokens of a Decode call that goes on; False if there is no room for them now."""
        if not self._has_room.is_set():
            return False
        # Written into their place: copies of an item and its parts would cost twice as much.
        item = self._unsent.items.add(call=call_id)
        item.response.tokens.first_index = first_index
        if sample:
            item.response.tokens.sample = sample
        item.response.tokens.token_ids.extend(token_ids)
        self._told()
        return True

    def _told(self) -> None:
        self._has_items.set()
        if len(self._unsent.items) >= MAX_UNSENT:
            self._has_room.clear()

    async def _flush(self) -> None:
        """Send what there is, again and again, until cancelled."""
        while True:
            await self._has_items.wait()
            await asyncio.sleep(0)  # a call that has said its last is about to end
            self._has_items.clear()
            message, self._unsent = self._unsent, self._message()
            self._has_room.set()
            await self._context.write(message)

    async def _end_all(self) -> None:
        """End every call and wait for its end."""
        for call in self._calls.values():
            call.cancel()
        await asyncio.gather(*(call.task for call in self._calls.values()), return_exceptions=True)


class Call:
    """One call; the context of its handler."""

    def __init__(self, calls: _ManyCalls, item: RequestItem) -> None:
        self.requests: asyncio.Queue[object] = asyncio.Queue()
        self._calls = calls
        self._id = item.call
        self._end: CallEnd | None = CallEnd()
        timeout_s = item.timeout.ToNanoseconds() / 1e9
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def start(self, handler: Handler, request: object) -> None:
        self.task = asyncio.create_task(self._run(handler, request))
        self.task.add_done_callback(self._ended)  # also if it is cancelled before it began

    def cancel(self) -> None:
        """The caller left; nobody is told."""
        self._end = None
        self.task.cancel()

    async def read(self) -> object:
        return await self.requests.get()

    async def write(self, message: object) -> None:
        await self._calls.wait_for_room()
        self._calls.respond(self._id, message)

    def write_tokens(self, first_index: int, token_ids: Ids[int], sample: int = 0) -> bool:
        """Write tokens of a sample, from output index first_index on, without waiting; False if
        that cannot be done now."""
        return self._calls.put_tokens(self._id, first_index, token_ids, sample)

    def time_remaining(self) -> float | None:
        """Seconds until the call's time is over."""
        return self._timer.when() - asyncio.get_running_loop().time()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        self._fail(CallEnd(code=code.value[0], message=details))

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        details = dict(status.trailing_metadata or ()).get(STATUS_DETAILS_KEY, b"")
        assert isinstance(details, bytes)
        self._fail(CallEnd(code=status.code.value[0], message=status.details, details=details))

    def _fail(self, end: CallEnd) -> NoReturn:
        if self._end is not None:
            self._end = end
        raise grpc.aio.AbortError

    async def _run(self, handler: Handler, request: object) -> None:
        with suppress(grpc.aio.AbortError):
            await handler(request, self)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._timer.cancel()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a call failed on a defect", exc_info=error)
            self._end = CallEnd(
                code=code_pb2.INTERNAL, message="internal error; see the worker's log"
            )
        self._calls.ended(self._id, self._end)

    def _expire(self) -> None:
        if self._end is not None:
            self._end = CallEnd(code=code_pb2.DEADLINE_EXCEEDED, message="the call's time is over")
        self.task.cancel()
