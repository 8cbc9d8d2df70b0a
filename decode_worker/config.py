"""Settings of a decode worker, read once in `__main__` and checked here."""

from dataclasses import dataclass, field, replace

from octavo.engine.config import EngineConfig
from octavo.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(WorkerConfig):
    """A worker that pulls prompts' KV and samples tokens."""

    local_prefill_max_tokens: int = field(
        default=64, metadata={"help": "Longest prompt tail computed without a prefill worker."}
    )

    preemption: str = field(
        default="auto",
        metadata={"help": "When blocks run out: recompute, swap, or auto, what costs less."},
    )
    swap_space_bytes: int | None = field(
        default=None,
        metadata={
            "help": "Host memory for swap; default: the pool's size, at most 1 (GPU: 4) GiB."
        },
    )

    def __post_init__(self) -> None:
        # Named: super() without arguments does not work in a dataclass with slots.
        WorkerConfig.__post_init__(self)
        if self.local_prefill_max_tokens < 0:
            raise ValueError(
                "local_prefill_max_tokens must not be negative, "
                f"got {self.local_prefill_max_tokens}"
            )

    def engine_config(self) -> EngineConfig:
        """What the engine is told."""
        return replace(
            WorkerConfig.engine_config(self),
            preemption=self.preemption,
            swap_space_bytes=self.swap_space_bytes,
        )
