"""Stops asking a service that keeps failing, and tries one call again after a while."""

import time
from collections.abc import Callable


class CircuitBreaker:
    """Closed: calls pass. Open: none. After `open_s` one probe decides between the two.

    Only failures of the service count. A caller that gave up waiting says nothing about it.
    """

    def __init__(
        self,
        *,
        max_failures: int = 5,
        open_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_failures = max_failures
        self._open_s = open_s
        self._clock = clock
        self._num_failures = 0
        self._closes_at: float | None = None
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        return self._closes_at is not None

    def allows_call(self) -> bool:
        """Whether to call now; a True must be followed by `succeeded` or `failed`."""
        if self._closes_at is None:
            return True
        if self._is_probing or self._clock() < self._closes_at:
            return False
        self._is_probing = True
        return True

    def succeeded(self) -> None:
        self._num_failures = 0
        self._closes_at = None
        self._is_probing = False

    def failed(self) -> None:
        self._num_failures += 1
        if self._is_probing or self._num_failures >= self._max_failures:
            self._closes_at = self._clock() + self._open_s
            self._is_probing = False
