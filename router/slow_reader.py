"""Ends the call of a client that stopped reading.

One timer a call looks now and then how long the present write has waited: a timer for each message
would cost as much as the rest of its way.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import grpc

from octavo.rpc.errors import RequestError

Message = TypeVar("Message", contravariant=True)


class SlowReader(RequestError):
    """The client stopped reading; its request holds blocks that others want."""

    code = grpc.StatusCode.ABORTED


class Writable(Protocol[Message]):
    """A call to whose client messages can be written."""

    async def write(self, message: Message) -> None: ...


@asynccontextmanager
async def patient_write(
    context: Writable[Message], patience_s: float
) -> AsyncIterator[Callable[[Message], Awaitable[None]]]:
    """`context.write` for the block, which ends with SlowReader when a write takes too long."""
    watch = _Watch(context, patience_s)
    try:
        async with asyncio.timeout(None) as watch.patience:
            yield watch.write
    except TimeoutError:
        if not watch.patience.expired():
            raise
        raise SlowReader(f"the client took no message for {patience_s:g} s") from None
    finally:
        watch.timer.cancel()


class _Watch(Generic[Message]):
    """One call's writes and the timer that looks at them."""

    patience: asyncio.Timeout

    def __init__(self, context: Writable[Message], patience_s: float) -> None:
        self._context = context
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None
        self.timer = self._loop.call_later(patience_s, self._look)

    async def write(self, message: Message) -> None:
        self._waiting_since = self._loop.time()
        await self._context.write(message)
        self._waiting_since = None

    def _look(self) -> None:
        now = self._loop.time()
        left_s = self._patience_s
        if self._waiting_since is not None:
            left_s += self._waiting_since - now
        if left_s > 0:
            self.timer = self._loop.call_later(left_s, self._look)
        else:
            self.patience.reschedule(now)
