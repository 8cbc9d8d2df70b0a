"""The part of a handler that somebody else may end with an error, as a timer ends `timeout`."""

import asyncio
from types import TracebackType
from typing import Self


class StreamScope:
    """`with scope:` raises the error of `end` in place of the cancellation that it sends.

    A cancellation from elsewhere (the caller left, its deadline passed) goes through.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        self._num_cancellations = 0

    def end(self, error: Exception) -> None:
        """Make the block raise `error`; the first error counts."""
        if self._error is not None:
            return
        self._error = error
        if self._task is not None:
            self._task.cancel()

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
        if task is None or self._error is None:
            return
        if task.uncancel() > self._num_cancellations:
            return  # cancelled from elsewhere, too
        if kind is None or kind is asyncio.CancelledError:
            raise self._error from error
