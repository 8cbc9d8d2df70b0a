"""Bounds what waits: prompt tokens of requests that have no first token yet.

    admit --> waiting (counted) --first token--> answered (not counted)
      |
      +--> Overloaded, at once, with the time until the queue will have drained

One prompt that is larger than the bound alone is still taken while nothing else waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.rpc.errors import Expired, Overloaded

MIN_RETRY_S = 0.1
MAX_RETRY_S = 30.0
_SMOOTHING = 0.2  # weight of the newest wait in the running mean


class Ticket:
    """One admitted request's share of the queue."""

    def __init__(self, admission: "Admission", num_tokens: int) -> None:
        self._admission: Admission | None = admission
        self._num_tokens = num_tokens
        self._admitted_at = admission.clock()

    def answered(self) -> None:
        """The first token is there, or never will be. Further calls do nothing."""
        if self._admission is not None:
            waited_s = self._admission.clock() - self._admitted_at
            self._admission.leave(self._num_tokens, waited_s)
            self._admission = None


class Admission:
    """The router's queue, as a count of tokens."""

    def __init__(
        self, max_queued_tokens: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_queued_tokens = max_queued_tokens
        self._mean_wait_s = MIN_RETRY_S
        self.clock = clock
        self.num_queued_tokens = 0
        self.num_refused = 0

    @contextmanager
    def admit(self, num_tokens: int, remaining_s: float | None) -> Iterator[Ticket]:
        """Count a prompt until its ticket is answered or the block ends.

        Raises:
            Overloaded: the queue has no room.
            Expired: the caller's deadline has passed; the request never runs.
        """
        if remaining_s is not None and remaining_s <= 0:
            raise Expired("the deadline passed before the request could start")
        total = self.num_queued_tokens + num_tokens
        if self.num_queued_tokens and total > self.max_queued_tokens:
            self.num_refused += 1
            raise Overloaded(
                f"{self.num_queued_tokens} prompt tokens wait for their first token; "
                f"{num_tokens} more would exceed max_queued_tokens {self.max_queued_tokens}",
                retry_after_s=min(max(self._mean_wait_s, MIN_RETRY_S), MAX_RETRY_S),
            )
        self.num_queued_tokens = total
        ticket = Ticket(self, num_tokens)
        try:
            yield ticket
        finally:
            ticket.answered()

    def leave(self, num_tokens: int, waited_s: float) -> None:
        """Give a ticket's tokens back; called by the ticket, once."""
        self.num_queued_tokens -= num_tokens
        self._mean_wait_s += _SMOOTHING * (waited_s - self._mean_wait_s)
