"""A LoRA adapter as the service tells of it."""

from dataclasses import dataclass
from typing import Self

from octavo.inference.v1 import adapter_pb2 as pb


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter, which requests choose by `lora_adapter=name`."""

    name: str
    fingerprint: str  # of its content: 32 hex digits
    rank: int
    prefill_workers: int  # that have it
    decode_workers: int

    @classmethod
    def of(cls, message: pb.Adapter) -> Self:
        return cls(
            message.name,
            message.fingerprint,
            message.rank,
            message.prefill_workers,
            message.decode_workers,
        )
