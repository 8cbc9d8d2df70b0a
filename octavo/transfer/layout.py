"""Whether two workers' blocks are the same thing: every field of KvLayout must be equal."""

from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import Precondition

PROTOCOL_VERSION = 1


def check_layout(mine: worker_pb2.KvLayout, theirs: worker_pb2.KvLayout, peer: str) -> None:
    """Compare field by field.

    Raises:
        Precondition: the first difference, with both values.
    """
    for field in worker_pb2.KvLayout.DESCRIPTOR.fields:
        here, there = getattr(mine, field.name), getattr(theirs, field.name)
        if here != there:
            raise Precondition(
                f"layout.{field.name}",
                f"{peer} has {field.name} {there!r}, this worker has {here!r}: "
                "their blocks cannot be exchanged",
            )
