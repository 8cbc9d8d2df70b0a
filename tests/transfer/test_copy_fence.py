"""Blocks are let go exactly once: when no copy will begin and none runs."""

import asyncio
import threading

import pytest

from octavo.transfer.copy_fence import CopyFence
from octavo.transfer.copy_thread import CopyThread


def test_closing_without_a_copy_clears_at_once() -> None:
    cleared: list[int] = []
    fence = CopyFence(lambda: cleared.append(1))
    fence.close()
    fence.close()
    assert cleared == [1]


def test_a_running_copy_is_waited_for() -> None:
    cleared: list[int] = []
    fence = CopyFence(lambda: cleared.append(1))
    fence.begin_copy()
    fence.close()
    assert cleared == []
    fence.end_copy()
    assert cleared == [1]
    with pytest.raises(RuntimeError):
        fence.begin_copy()


async def test_a_cancelled_caller_leaves_its_copy_fenced() -> None:
    copies, gate, running = CopyThread(), threading.Event(), asyncio.Event()
    loop, cleared = asyncio.get_running_loop(), asyncio.Event()
    fence = CopyFence(cleared.set)

    def copy() -> None:
        loop.call_soon_threadsafe(running.set)
        gate.wait(10)

    fence.begin_copy()
    task = asyncio.create_task(copies.run(copy, fence.end_copy))
    await running.wait()
    task.cancel()
    await asyncio.wait({task})
    fence.close()
    assert not cleared.is_set()
    gate.set()
    async with asyncio.timeout(5):
        await cleared.wait()
    copies.close()


async def test_a_copy_that_never_began_ends_too() -> None:
    copies, gate, ended = CopyThread(), threading.Event(), asyncio.Event()
    first = asyncio.create_task(copies.run(lambda: gate.wait(10), lambda: None))
    second = asyncio.create_task(copies.run(lambda: None, ended.set))
    await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(5):
        await ended.wait()
    gate.set()
    await first
    copies.close()
