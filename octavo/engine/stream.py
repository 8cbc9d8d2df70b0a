"""The outputs of one sequence, on the event loop's side."""

import asyncio
from typing import Self

from octavo.engine.sequence import SequenceOutput


class SequenceStream:
    """Iterates over a sequence's outputs up to the one that finishes it.

    Iteration raises EngineDied, or the output's own error, instead of ending early.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[SequenceOutput | Exception] = asyncio.Queue()
        self._has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SequenceOutput:
        if self._has_ended:
            raise StopAsyncIteration
        output = await self._queue.get()
        if isinstance(output, Exception):
            self._has_ended = True
            raise output
        self._has_ended = output.finish_reason is not None
        return output

    def put(self, output: SequenceOutput) -> None:
        self._queue.put_nowait(output if output.error is None else output.error)

    def fail(self, error: Exception) -> None:
        self._queue.put_nowait(error)
