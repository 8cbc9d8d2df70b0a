"""Knows when the last copy into a reservation's blocks has ended."""

from collections.abc import Callable


class CopyFence:
    """Calls `on_clear` once: after `close`, when no copy runs any more.

    A copy's thread outlives the task that started it; its destination must not be given to another
    request before it ends.
    """

    def __init__(self, on_clear: Callable[[], None]) -> None:
        self._on_clear = on_clear
        self._num_copies = 0
        self._is_closed = False

    def begin_copy(self) -> None:
        if self._is_closed:
            raise RuntimeError("a copy must not begin behind a closed fence")
        self._num_copies += 1

    def end_copy(self) -> None:
        self._num_copies -= 1
        self._clear_if_due()

    def close(self) -> None:
        """No copy begins any more; closing twice is harmless."""
        if not self._is_closed:
            self._is_closed = True
            self._clear_if_due()

    def _clear_if_due(self) -> None:
        if self._is_closed and self._num_copies == 0:
            self._on_clear()
