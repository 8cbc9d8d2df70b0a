"""What a worker handed over or received since its start, by how the bytes travelled."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from octavo.histogram import HAND_OVER_S, Histogram
from octavo.rpc.errors import DataLoss, NoWorker, RequestError

# How a pull may end: all blocks verified; bytes failed their check; the other worker is gone; it,
# or this side, refused; the request was cancelled; a defect.
OUTCOMES = ("ok", "corrupt", "peer_lost", "refused", "cancelled", "failed")


@dataclass(slots=True)
class Moved:
    """Over one transport; only the event loop counts."""

    blocks: int = 0
    bytes: int = 0
    # Of a receiver's pulls:
    seconds: Histogram = field(default_factory=lambda: Histogram(HAND_OVER_S))  # those that are ok
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    def add(self, num_blocks: int, block_bytes: int) -> None:
        self.blocks += num_blocks
        self.bytes += num_blocks * block_bytes

    @contextmanager
    def pull(self) -> Iterator[None]:
        """Count one pull: how it ends, and how long it takes to end well."""
        began, outcome = monotonic(), "failed"
        try:
            yield
            outcome = "ok"
            self.seconds.add(monotonic() - began)
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            self.ended[outcome] += 1


@dataclass(slots=True)
class TransferCounters:
    """Over both."""

    shared_memory: Moved = field(default_factory=Moved)
    messages: Moved = field(default_factory=Moved)
    digest_mismatches: int = 0

    def of(self, *, uses_segment: bool) -> Moved:
        return self.shared_memory if uses_segment else self.messages

    @property
    def blocks(self) -> int:
        return self.shared_memory.blocks + self.messages.blocks

    @property
    def bytes(self) -> int:
        return self.shared_memory.bytes + self.messages.bytes


def _outcome(error: BaseException) -> str:
    match error:
        case DataLoss():
            return "corrupt"
        case NoWorker():
            return "peer_lost"
        case RequestError():
            return "refused"
        case asyncio.CancelledError() | GeneratorExit():
            return "cancelled"
    return "failed"
