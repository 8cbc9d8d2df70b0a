"""Chunks that were sent and not acknowledged: how many may be, and when the receiver is stuck."""

import asyncio
from collections import deque
from collections.abc import Callable

from octavo.rpc.errors import InvalidRequest, NoWorker, RequestError


class Window:
    """Acknowledgements come in order; `on_error` is called once if none comes for `stall_s`."""

    def __init__(
        self, max_chunks: int, stall_s: float, on_error: Callable[[RequestError], None]
    ) -> None:
        self.max_chunks = max_chunks
        self.stall_s = stall_s
        self._on_error = on_error
        self._unacknowledged: deque[tuple[int, Callable[[], None]]] = deque()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def wait_for_room(self) -> None:
        while len(self._unacknowledged) >= self.max_chunks:
            await self._wait_for_change()

    async def wait_until_empty(self) -> None:
        while self._unacknowledged:
            await self._wait_for_change()

    def add(self, chunk: int, on_acknowledged: Callable[[], None]) -> None:
        """Note a chunk that is about to be sent."""
        self._unacknowledged.append((chunk, on_acknowledged))
        if self._timer is None:
            self._restart_timer()

    def acknowledge(self, chunk: int) -> None:
        """Note the receiver's acknowledgement.

        Raises:
            InvalidRequest: it is not the oldest chunk under way.
        """
        if not self._unacknowledged or self._unacknowledged[0][0] != chunk:
            expected = self._unacknowledged[0][0] if self._unacknowledged else "none"
            raise InvalidRequest(
                "ack.chunk", f"chunk {chunk} was acknowledged, the oldest under way is {expected}"
            )
        _, on_acknowledged = self._unacknowledged.popleft()
        on_acknowledged()
        self._restart_timer()
        self._changed.set()

    def close(self) -> None:
        """Give back what no acknowledgement will; the receiver's digest guards against reuse."""
        while self._unacknowledged:
            _, on_acknowledged = self._unacknowledged.popleft()
            on_acknowledged()
        self._restart_timer()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unacknowledged:
            self._timer = asyncio.get_running_loop().call_later(self.stall_s, self._stalled)

    def _stalled(self) -> None:
        self._timer = None
        chunk, _ = self._unacknowledged[0]
        self._on_error(
            NoWorker(
                f"the decode worker is stuck: chunk {chunk} is not acknowledged "
                f"after {self.stall_s:g} s"
            )
        )
