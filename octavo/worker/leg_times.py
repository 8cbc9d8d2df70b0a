"""How long requests wait in a worker, and how long their prompts take there."""

from dataclasses import dataclass, field

from octavo.engine.sequence import Sequence
from octavo.histogram import REQUEST_S, Histogram


@dataclass(slots=True)
class LegTimes:
    """One value a request; only the event loop counts."""

    queue: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))

    def waited(self, seq: Sequence, arrived: float) -> None:
        """The sequence's request came at `arrived` (time.monotonic()); it may never have run."""
        if seq.admitted_at:
            self.queue.add(seq.admitted_at - arrived)
