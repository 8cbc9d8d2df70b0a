"""A LoRA adapter as a router knows it: a name, and what stands behind it on a worker."""

from dataclasses import dataclass

from octavo.internal.v1alpha1 import worker_pb2


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """Equal on workers that compute the same with it."""

    name: str
    fingerprint: str  # of ranks, scales and weights; in the key of every block computed with it
    rank: int

    @classmethod
    def of(cls, ref: worker_pb2.AdapterRef) -> "AdapterFacts":
        return cls(ref.name, ref.fingerprint, ref.rank)

    def to_proto(self) -> worker_pb2.AdapterRef:
        return worker_pb2.AdapterRef(name=self.name, fingerprint=self.fingerprint, rank=self.rank)
