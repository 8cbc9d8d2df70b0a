"""Virtual time: a queue of things to do, in order of time, then in order of asking."""

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from octavo.engine import admission
from octavo.router import worker

Action = Callable[[], None]


class Clock:
    """Runs actions at their times; `now` never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._queue: list[tuple[float, int, Action]] = []
        self._num_asked = 0

    def monotonic(self) -> float:
        """What `time.monotonic` says to code that runs on this clock."""
        return self.now

    def after(self, delay_s: float, action: Action) -> None:
        if delay_s < 0:
            raise ValueError(f"delay_s must not be negative, got {delay_s}")
        self._num_asked += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._num_asked, action))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._queue:
            self.now, _, action = heapq.heappop(self._queue)
            self.num_events += 1
            action()


@contextmanager
def on_clock(clock: Clock) -> Iterator[None]:
    """Code of engine and router that looks at the time sees this clock's."""
    with ExitStack() as stack:
        for module in (admission, worker):
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield
