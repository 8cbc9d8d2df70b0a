"""Which attempt of each request is open here, and the streams ("legs") that belong to it.

    attempt 1:  prefill leg + pull leg      attempt 2 comes: both legs are ended, and only when
                                            their blocks are back is attempt 2 let in

A leg joins when it was checked and can be counted on; from then on its failure ends the other one.
Older attempts and repeated legs are refused, also for a while after the attempt has ended: a late
message must not run a request again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo.rpc.errors import Aborted, Duplicate, Expired, NoWorker, RequestError
from octavo.transfer.request_key import RequestKey
from octavo.worker.stream_scope import StreamScope

MAX_REMEMBERED = 4096

State = TypeVar("State")
Message = TypeVar("Message")
Write = Callable[[Message], Coroutine[None, None, None]]


@dataclass(slots=True)
class Attempt(Generic[State]):
    """One try of a request; `state` is what its legs share."""

    key: RequestKey
    state: State
    _open_legs: dict[str, StreamScope] = field(default_factory=dict)
    _seen_legs: set[str] = field(default_factory=set)
    _joined_legs: dict[str, asyncio.Event] = field(default_factory=dict)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, leg: str) -> None:
        """From now on `leg` can be counted on, and its failure is the attempt's."""
        self._joined(leg).set()

    async def wait_for(self, leg: str) -> None:
        """Wait until `leg` has joined."""
        await self._joined(leg).wait()

    def is_joined(self, leg: str) -> bool:
        return self._joined(leg).is_set()

    def writer(self, leg: str, write: Callable[[Message], Awaitable[None]]) -> Write[Message]:
        """`write`, of a message that goes out whole even if the leg is ended meanwhile."""
        scope = self._open_legs[leg]

        async def write_whole(message: Message) -> None:
            await scope.whole(write(message))

        return write_whole

    def end(self, error: RequestError) -> None:
        """End every open leg with `error`."""
        for scope in self._open_legs.values():
            scope.end(error)

    def _joined(self, leg: str) -> asyncio.Event:
        return self._joined_legs.setdefault(leg, asyncio.Event())


class Attempts(Generic[State]):
    """All open attempts of a worker; a leg may last `max_request_s`."""

    def __init__(self, new_state: Callable[[], State], max_request_s: float) -> None:
        self._new_state = new_state
        self._max_request_s = max_request_s
        self._open: dict[str, Attempt[State]] = {}
        self._last_ended: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def end_all(self, error: RequestError) -> None:
        """End every open leg with `error`."""
        for attempt in self._open.values():
            attempt.end(error)

    def is_open(self, key: RequestKey) -> bool:
        """Whether this very attempt has a leg here."""
        attempt = self._open.get(key.request_id)
        return attempt is not None and attempt.key == key

    @asynccontextmanager
    async def leg(self, key: RequestKey, name: str) -> AsyncIterator[Attempt[State]]:
        """Take part in attempt `key` as its leg `name`; lower attempts are ended first.

        Raises:
            Aborted: a higher attempt is known, or this one has ended.
            Duplicate: the attempt has, or had, such a leg.
            Expired: the leg took too long, whatever its caller's deadline.
        """
        attempt = await self._enter(key, name)
        scope = attempt._open_legs[name]
        expired = Expired(f"request {key} ran for {self._max_request_s:g} s, the most allowed here")
        timer = asyncio.get_running_loop().call_later(self._max_request_s, scope.end, expired)
        try:
            with scope:
                yield attempt
        except BaseException as error:
            if attempt.is_joined(name):
                why = str(error) or "its caller left"
                attempt.end(NoWorker(f"the {name} stream of request {key} broke: {why}"))
            raise
        finally:
            timer.cancel()
            self._leave(attempt, name)

    async def _enter(self, key: RequestKey, name: str) -> Attempt[State]:
        while True:
            attempt = self._open.get(key.request_id)
            last = attempt.key.attempt if attempt else self._last_ended.get(key.request_id, -1)
            if key.attempt < last or (attempt is None and key.attempt == last):
                raise Aborted(f"request {key} comes too late: attempt {last} is known here")
            if attempt is None or attempt.key == key:
                break
            attempt.end(Aborted(f"attempt {key.attempt} took over from request {attempt.key}"))
            await attempt._closed.wait()
        if attempt is None:
            attempt = self._open[key.request_id] = Attempt(key, self._new_state())
        if name in attempt._seen_legs:
            raise Duplicate(f"request {key} has a {name} stream already")
        attempt._seen_legs.add(name)
        attempt._open_legs[name] = StreamScope()
        return attempt

    def _leave(self, attempt: Attempt[State], name: str) -> None:
        del attempt._open_legs[name]
        if not attempt.is_joined(name):
            attempt._seen_legs.discard(name)  # it was refused, or left early: another may come
        if attempt._open_legs:
            return
        del self._open[attempt.key.request_id]
        if attempt._seen_legs:
            self._remember(attempt.key)
        attempt._closed.set()

    def _remember(self, key: RequestKey) -> None:
        self._last_ended[key.request_id] = key.attempt
        self._last_ended.move_to_end(key.request_id)
        if len(self._last_ended) > MAX_REMEMBERED:
            self._last_ended.popitem(last=False)
