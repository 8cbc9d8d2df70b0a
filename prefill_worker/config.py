"""Settings of a prefill worker, read once in `__main__` and checked here."""

from dataclasses import dataclass, field

from octavo.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig(WorkerConfig):
    """A worker that computes prompts and hands over their KV."""

    segment_bytes: int = field(
        default=32 << 20, metadata={"help": "Shared memory that chunks pass through."}
    )

    def __post_init__(self) -> None:
        # Named: super() without arguments does not work in a dataclass with slots.
        WorkerConfig.__post_init__(self)
        if self.segment_bytes < 1:
            raise ValueError(f"segment_bytes must be positive, got {self.segment_bytes}")
