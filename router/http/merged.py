"""Several streams read at once, each message with the number of its stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

Message = TypeVar("Message")


async def merged(
    streams: Sequence[AsyncGenerator[Message, None]],
) -> AsyncGenerator[tuple[int, Message], None]:
    """Read all streams to their end; closing this closes them, and so does the first error."""
    if len(streams) == 1:
        try:
            async for message in streams[0]:
                yield 0, message
        finally:
            await streams[0].aclose()
        return
    # So few that a slow reader makes them all wait.
    queue: asyncio.Queue[tuple[int, Message] | Exception | None] = asyncio.Queue(len(streams))
    readers = [
        asyncio.create_task(_read(index, stream, queue)) for index, stream in enumerate(streams)
    ]
    try:
        num_open = len(streams)
        while num_open:
            item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


async def _read(
    index: int,
    stream: AsyncGenerator[Message, None],
    queue: "asyncio.Queue[tuple[int, Message] | Exception | None]",
) -> None:
    try:
        async for message in stream:
            await queue.put((index, message))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
    finally:
        await stream.aclose()
