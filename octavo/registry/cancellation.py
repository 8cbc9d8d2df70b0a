"""Ends background tasks."""

import asyncio
from typing import Any

_AGAIN_S = 0.05


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task until it is done.

    Once may not be enough: Python 3.11's `asyncio.wait_for`, which redis-py sends commands to a
    cluster with, drops a cancellation that arrives in the moment in which its task completes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
