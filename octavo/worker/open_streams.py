"""Counts a worker's streams, and closes the door when it drains."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.rpc.errors import Draining


class OpenStreams:
    """While draining, new streams are refused and open ones may finish."""

    def __init__(self) -> None:
        self.num_open = 0
        self.num_served = 0
        self._draining = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    @contextmanager
    def one(self, *, belongs_to_open_request: bool = False) -> Iterator[None]:
        """Count a stream.

        Raises:
            Draining: the worker drains, and the stream is no part of a request it runs.
        """
        if self.is_draining and not belongs_to_open_request:
            raise Draining("this worker is draining; send the request to another one")
        self.num_open += 1
        self.num_served += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self._idle.set()

    def close(self) -> None:
        self._draining.set()

    async def wait_until_draining(self) -> None:
        await self._draining.wait()

    async def wait_until_idle(self) -> None:
        await self._idle.wait()
