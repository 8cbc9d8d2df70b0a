"""Times on the wire."""

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """A length of time; never negative."""
    whole, nanos = divmod(max(0, round(seconds * 1e9)), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def seconds_of(message: Duration) -> float:
    """The length of time that a message holds."""
    return message.seconds + message.nanos / 1e9
