"""The window opens by acknowledgements in order, and notices a receiver that gives none."""

import asyncio

import pytest

from octavo.rpc.errors import InvalidRequest, NoWorker, RequestError
from octavo.transfer.window import Window


def no_error(error: RequestError) -> None:
    raise error


async def test_room_comes_with_acknowledgements() -> None:
    freed: list[int] = []
    window = Window(2, 60, no_error)
    for chunk in range(2):
        await window.wait_for_room()
        window.add(chunk, lambda chunk=chunk: freed.append(chunk))  # type: ignore[misc]
    waiting = asyncio.create_task(window.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    window.acknowledge(0)
    await waiting
    assert freed == [0]
    window.close()
    assert freed == [0, 1]


async def test_only_the_oldest_chunk_may_be_acknowledged() -> None:
    window = Window(4, 60, no_error)
    with pytest.raises(InvalidRequest, match="none"):
        window.acknowledge(0)
    for chunk in range(3):
        window.add(chunk, lambda: None)
    for wrong in (1, 2, 3, 2**63):
        with pytest.raises(InvalidRequest, match="oldest"):
            window.acknowledge(wrong)
    window.acknowledge(0)
    with pytest.raises(InvalidRequest):
        window.acknowledge(0)
    window.close()


async def test_a_silent_receiver_is_an_error_and_an_idle_window_is_none() -> None:
    errors: asyncio.Queue[RequestError] = asyncio.Queue()
    window = Window(4, 0.02, errors.put_nowait)
    window.add(0, lambda: None)
    window.acknowledge(0)
    await asyncio.sleep(0.06)
    assert errors.empty()
    window.add(1, lambda: None)
    async with asyncio.timeout(5):
        error = await errors.get()
    assert isinstance(error, NoWorker) and "chunk 1" in error.message
    window.close()
