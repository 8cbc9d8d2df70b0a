"""What a worker handed over or received since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransferCounters:
    """Only the event loop counts."""

    blocks: int = 0
    bytes: int = 0
    digest_mismatches: int = 0
