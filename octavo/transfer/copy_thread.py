"""One thread that copies and hashes blocks, so that the event loop never does.

Cancelling a task does not stop a thread. So a copy has an `on_end`, called on the event loop when
the copy runs no more (or never ran), however its caller fared: what the copy reads and writes is
given back there and nowhere else.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class CopyThread:
    """Runs copies one after the other; at most one chunk is between two engine steps."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="copy")

    async def run(self, copy: Callable[[], T], on_end: Callable[[], None]) -> T:
        """Await `copy`, run on the thread; `on_end` follows also when the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future = self._executor.submit(copy)

        def ended(_: "Future[T]") -> None:
            loop.call_soon_threadsafe(on_end)

        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the copy that runs; drop those that have not begun."""
        self._executor.shutdown(wait=True, cancel_futures=True)
