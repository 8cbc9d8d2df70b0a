"""The last minute of a service: counters become rates, rates become trends.

    snapshot, snapshot, ... --differences--> Interval, Interval, ... --> rates, shares, trends

A counter is compared with the same process's alone (epoch); one that went back counts as nothing.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.top.snapshot import RequestCounters, Snapshot, State, WorkerCounters, WorkerState

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkerRates:
    """What one worker did between the last two times that it told its counters."""

    tokens_per_s: float  # computed prompt tokens of a prefill worker, output tokens of another
    step_s: float | None  # mean; None without a step
    busy: float  # share of the time, 0 to 1, that its model computed
    bytes_per_s: float  # of KV, sent or received


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two snapshots."""

    began_at: float  # time.monotonic(), as below
    ended_at: float
    requests: dict[str, int]  # RequestCounters' differences
    workers: dict[str, WorkerRates]  # by id
    held: float  # share of all blocks, 0 to 1, at its end

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at

    def per_s(self, counter: str) -> float:
        return self.requests[counter] / self.seconds


class History:
    """Snapshots come in, the last minute can be asked for."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.intervals: deque[Interval] = deque()
        self._seen: dict[str, tuple[float, WorkerState]] = {}  # last one with counters, by id
        self._kept: dict[str, WorkerRates] = {}  # the latest, by id

    def add(self, snapshot: Snapshot) -> None:
        before, self.latest = self.latest, snapshot
        workers = self._rates(snapshot)
        if before is not None and snapshot.taken_at > before.taken_at:
            self.intervals.append(_interval(before, snapshot, workers))
        while self.intervals and snapshot.taken_at - self.intervals[0].began_at > WINDOW_S + 1:
            self.intervals.popleft()

    @property
    def last(self) -> Interval | None:
        return self.intervals[-1] if self.intervals else None

    def total(self, counter: str) -> int:
        """A request counter over the minute."""
        return sum(each.requests[counter] for each in self.intervals)

    def prompt_shares(self) -> tuple[dict[str, float], bool]:
        """Shares of prompt tokens that were cached or transferred, and whether of the minute.

        If no prompt came in it they are those since the router's start.
        """
        names = (
            "cached_prompt_tokens",
            "cached_on_prefill_worker",
            "cached_on_decode_worker",
            "transferred_prompt_tokens",
        )
        if num_prompt := self.total("prompt_tokens"):
            return {name: min(self.total(name) / num_prompt, 1.0) for name in names}, True
        if self.latest is None or not self.latest.router.counters.prompt_tokens:
            return dict.fromkeys(names, 0.0), False
        counters = self.latest.router.counters
        return {name: getattr(counters, name) / counters.prompt_tokens for name in names}, False

    def trend(self, value: Callable[[Interval], float], num_cells: int) -> list[float | None]:
        """The minute in so many equal parts, the newest last: means, or None for no news."""
        if self.latest is None:
            return [None] * num_cells
        starts_at, cell_s = self.latest.taken_at - WINDOW_S, WINDOW_S / num_cells
        sums = [0.0] * num_cells
        weights = [0.0] * num_cells
        for each in self.intervals:
            level = value(each)
            first = max(int((each.began_at - starts_at) / cell_s), 0)
            last = min(int((each.ended_at - starts_at) / cell_s), num_cells - 1)
            for cell in range(first, last + 1):
                begins = starts_at + cell * cell_s
                overlap = min(each.ended_at, begins + cell_s) - max(each.began_at, begins)
                if overlap > 0:
                    sums[cell] += level * overlap
                    weights[cell] += overlap
        pairs = zip(sums, weights, strict=True)
        return [total / weight if weight else None for total, weight in pairs]

    def _rates(self, snapshot: Snapshot) -> dict[str, WorkerRates]:
        """Since each worker's last counters; a worker seen for the first time has none.

        One that does not tell them now, since its step is a long one, keeps its rates.
        """
        rates = {}
        for worker in snapshot.workers:
            if worker.counters is None:
                if worker.worker_id in self._kept and worker.state is not State.UNREACHABLE:
                    rates[worker.worker_id] = self._kept[worker.worker_id]
                continue
            at, before = self._seen.get(worker.worker_id, (0.0, None))
            self._seen[worker.worker_id] = snapshot.taken_at, worker
            is_same = before is not None and before.epoch == worker.epoch
            if is_same and before is not None and before.counters is not None:
                seconds = snapshot.taken_at - at
                if seconds > 0:
                    rates[worker.worker_id] = _worker_rates(before.counters, worker, seconds)
        self._kept = rates
        return rates


def _interval(before: Snapshot, after: Snapshot, workers: dict[str, WorkerRates]) -> Interval:
    is_same = before.router.epoch == after.router.epoch
    old, new = before.router.counters, after.router.counters
    differences = {
        name: max(getattr(new, name) - getattr(old, name), 0) if is_same else 0
        for name in RequestCounters.__slots__
    }
    alive = [each for each in after.workers if each.state is not State.UNREACHABLE]
    total = sum(each.blocks.total for each in alive)
    return Interval(
        before.taken_at,
        after.taken_at,
        differences,
        workers,
        held=sum(each.blocks.held for each in alive) / total if total else 0.0,
    )


def _worker_rates(old: WorkerCounters, worker: WorkerState, seconds: float) -> WorkerRates:
    new = worker.counters
    assert new is not None
    difference = {
        name: max(getattr(new, name) - getattr(old, name), 0) for name in WorkerCounters.__slots__
    }
    is_prefill = worker.role == "prefill"
    tokens = difference["prompt_tokens_computed" if is_prefill else "tokens_generated"]
    steps, step_seconds = difference["computing_steps"], difference["step_seconds"]
    return WorkerRates(
        tokens_per_s=tokens / seconds,
        step_s=step_seconds / steps if steps else None,
        busy=min(step_seconds / seconds, 1.0),
        bytes_per_s=difference["bytes_transferred"] / seconds,
    )
