"""Stands in for Redis: the answers of `lookup.lua`, some time late, and counts of its work."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.clock import Clock


@dataclass(slots=True)
class IndexWork:
    """What Redis had to do."""

    lookups: int = 0
    keys_read: int = 0  # one HMGET each
    fields_read: int = 0
    writes: int = 0  # batches
    keys_written: int = 0


class SimulatedIndex:
    """Which worker holds which block, as told some time ago."""

    def __init__(self, clock: Clock, delay_s: float, batch_blocks: int) -> None:
        self.work = IndexWork()
        self._clock = clock
        self._delay_s = delay_s
        self._batch_blocks = batch_blocks
        self._holders: dict[bytes, set[str]] = {}
        self._pending: dict[str, dict[bytes, bool]] = {}

    def publish(self, worker_id: str, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Changes of one worker; those of one delay go out together, the newest of a key counts."""
        if not (stored or removed):
            return
        if worker_id not in self._pending:
            self._pending[worker_id] = {}
            self._clock.after(self._delay_s, lambda: self._flush(worker_id))
        pending = self._pending[worker_id]
        pending |= dict.fromkeys(stored, True) | dict.fromkeys(removed, False)

    async def lookup(
        self, keys: Sequence[bytes], workers: Sequence[tuple[str, int]]
    ) -> dict[str, int]:
        """Leading blocks per worker, workers with none left out. Never waits."""
        self.work.lookups += 1
        live = {worker_id for worker_id, _ in workers}
        matched: dict[str, int] = {}
        for depth, key in enumerate(keys, start=1):
            self.work.keys_read += 1
            self.work.fields_read += len(live)
            live = live & self._holders.get(key, set())
            if not live:
                break
            matched |= dict.fromkeys(live, depth)
        return matched

    def _flush(self, worker_id: str) -> None:
        changes = self._pending.pop(worker_id)
        self.work.writes += -(-len(changes) // self._batch_blocks)
        self.work.keys_written += len(changes)
        for key, is_stored in changes.items():
            if is_stored:
                self._holders.setdefault(key, set()).add(worker_id)
            elif (holders := self._holders.get(key)) is not None:
                holders.discard(worker_id)
                if not holders:
                    del self._holders[key]
