"""Names one try of one request between our processes; the caller's id is never such a key."""

from dataclasses import dataclass
from typing import Self

from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import InvalidRequest

MAX_REQUEST_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Chosen by the router; `attempt` grows with every retry."""

    request_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"

    @classmethod
    def from_proto(cls, message: worker_pb2.RequestKey, field: str) -> Self:
        """Read a message.

        Raises:
            InvalidRequest: the id is empty or too long; names `field`.
        """
        if not 1 <= len(message.request_id) <= MAX_REQUEST_ID_CHARS:
            raise InvalidRequest(
                f"{field}.request_id",
                f"{field}.request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters, "
                f"got {len(message.request_id)}",
            )
        return cls(message.request_id, message.attempt)

    def to_proto(self) -> worker_pb2.RequestKey:
        return worker_pb2.RequestKey(request_id=self.request_id, attempt=self.attempt)
