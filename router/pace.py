"""Holds back news that follow others too closely, so that a client gets them in one message.

    news, news --> waiting --tick--> call, call

What a message costs does not depend on the number of its tokens. One timer serves all streams.
"""

import asyncio
from collections.abc import Callable


class Pace:
    """The shortest time between two messages of a stream, and who waits for its end."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._waiting: list[Callable[[], None]] = []

    def call_next(self, callback: Callable[[], None]) -> None:
        """Call back at the next tick, at most `interval_s` from now."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(self.interval_s, self._tick)
        self._waiting.append(callback)

    def _tick(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
