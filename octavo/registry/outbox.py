"""What a worker still has to tell Redis about its blocks: the newest event of each block.

add --> {block: stored | removed}, oldest event first --take--> batch --put_back on failure--+
          ^                                                                                  |
          +----------------------------------------------------------------------------------+
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class Batch:
    stored: list[bytes]
    removed: list[bytes]


class Outbox:
    """Bounded. When it is full, stores go first (a snapshot brings them back), then old removes."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._is_stored: dict[bytes, bool] = {}
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._is_stored)

    def add(self, stored: Sequence[bytes], removed: Sequence[bytes]) -> bool:
        """Append events; False when stores had to be dropped and only a snapshot can repair it."""
        for keys, is_stored in ((stored, True), (removed, False)):
            for key in keys:
                self._is_stored.pop(key, None)
                self._is_stored[key] = is_stored
        return self._shrink()

    def take(self, max_keys: int) -> Batch:
        """The oldest events; parents come before their children."""
        batch = Batch([], [])
        for key in list(islice(self._is_stored, max_keys)):
            (batch.stored if self._is_stored.pop(key) else batch.removed).append(key)
        return batch

    def put_back(self, batch: Batch) -> bool:
        """Undo `take`, except where a newer event has come in between; returns as `add` does."""
        older = dict.fromkeys(batch.stored, True) | dict.fromkeys(batch.removed, False)
        for key in self._is_stored:
            older.pop(key, None)
        self._is_stored = older | self._is_stored
        return self._shrink()

    def _shrink(self) -> bool:
        """Down to half, so that a full outbox does not have to shrink at every event."""
        if len(self._is_stored) <= self._max_events:
            return True
        removed = [key for key, is_stored in self._is_stored.items() if not is_stored]
        num_stores = len(self._is_stored) - len(removed)
        kept = removed[-(self._max_events // 2) :]
        self.num_dropped += len(self._is_stored) - len(kept)
        self._is_stored = dict.fromkeys(kept, False)
        return num_stores == 0
