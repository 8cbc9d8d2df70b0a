"""The outputs of one request's samples, on the event loop's side."""

import asyncio
from collections.abc import Callable
from typing import Self

from octavo.engine.sequence import SequenceOutput


class SequenceStream:
    """Iterates over a request's outputs up to the one that finishes its last sample.

    Iteration raises EngineDied, or the output's own error, instead of ending early.
    """

    def __init__(self, num_samples: int = 1) -> None:
        self.token_times: dict[
            int, float
        ] = {}  # by sample: when it had its last tokens, if counted
        self._num_open = num_samples
        self._queue: asyncio.Queue[SequenceOutput | Exception] = asyncio.Queue()
        self._has_ended = False
        self._take: Callable[[SequenceOutput], bool] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SequenceOutput:
        if self._has_ended:
            raise StopAsyncIteration
        output = await self._queue.get()
        if isinstance(output, Exception):
            self._has_ended = True
            raise output
        if output.finish_reason is not None:
            self._num_open -= 1
            self._has_ended = self._num_open == 0
        return output

    async def not_taken(self, take: Callable[[SequenceOutput], bool]) -> SequenceOutput:
        """The next output that `take` refuses.

        The others are given to it as they come, without waking the task that waits: of a step of
        many sequences that would cost more than all else.
        """
        self._take = take
        try:
            return await anext(self)
        finally:
            self._take = None

    def put(self, output: SequenceOutput) -> None:
        if self._take is not None and self._queue.empty() and self._take(output):
            return
        self._queue.put_nowait(output if output.error is None else output.error)

    def fail(self, error: Exception) -> None:
        self._queue.put_nowait(error)
