"""The processes of `octavo up`: when one ends by itself, all are ended."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from octavo.cli.child import Child

STOP_S = 5.0  # after its grace a role ends by itself; then it is killed


class ChildDied(Exception):
    """A role's process ended by itself; the message holds the end of its log."""


class Crew:
    """A context manager: leaving it ends the children, routers first."""

    def __init__(self, grace_s: float) -> None:
        self.children: list[Child] = []
        self._grace_s = grace_s

    async def start(self, children: list[Child]) -> None:
        for child in children:
            self.children.append(child)
            await child.start()

    async def wait_for(self, work: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
        """Wait for the work, a death or the event; True if the work ended, False on the event.

        Raises:
            ChildDied: a process ended first.
        """
        tasks: set[asyncio.Task[Any]] = {
            working := asyncio.create_task(work),
            watching := asyncio.create_task(self._raise_when_one_ends()),
            asyncio.create_task(stop.wait()),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if watching in done:
            watching.result()
        if working in done:
            working.result()
        return working in done

    async def _raise_when_one_ends(self) -> None:
        """Never returns; raises ChildDied with the end of the log of the first that ended."""
        waits = {asyncio.create_task(child.wait()): child for child in self.children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        wait = next(iter(done))
        child = waits[wait]
        raise ChildDied(f"{child.name} ended with status {wait.result()}:\n{child.log_tail()}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        routers = [child for child in self.children if child.name.startswith("router")]
        workers = [child for child in self.children if child not in routers]
        for group in (routers, workers):  # once they have ended, so has every request
            await asyncio.gather(*(child.end(self._grace_s + STOP_S) for child in group))
