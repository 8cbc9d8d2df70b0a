"""The part of a handler that somebody else may end with an error, as a timer ends `timeout`."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

# A write that its reader holds up for so long is torn after all.
PATIENCE_S = 1.0


class StreamScope:
    """`with scope:` raises the error of `end` in place of the cancellation that it sends.

    A cancellation from elsewhere (the caller left, its deadline passed) goes through. Writes must
    go through `whole`: gRPC takes no status while a write that was cancelled is still under way.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        self._num_cancellations = 0  # from elsewhere, at the beginning
        self._has_cancelled = False
        self._is_whole = False
        self._timer: asyncio.TimerHandle | None = None

    def end(self, error: Exception) -> None:
        """Make the block raise `error`; the first error counts."""
        if self._error is not None:
            return
        self._error = error
        if self._is_whole:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._cancel)
        else:
            self._cancel()

    async def whole(self, operation: Awaitable[None]) -> None:
        """Await a write; `end` comes through behind it."""
        self._is_whole = True
        try:
            await operation
        finally:
            self._is_whole = False
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        if self._error is not None:
            raise self._error
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream scope needs a task")
        self._task = task
        self._num_cancellations = task.cancelling()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is None or self._error is None:
            return
        if self._has_cancelled and task.uncancel() > self._num_cancellations:
            return  # cancelled from elsewhere, too
        if kind is None or (self._has_cancelled and kind is asyncio.CancelledError):
            raise self._error from error

    def _cancel(self) -> None:
        if self._task is not None:
            self._has_cancelled = True
            self._task.cancel()
