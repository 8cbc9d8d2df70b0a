"""Times on the wire."""

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """A length of time; never negative."""
    message = Duration()
    message.FromNanoseconds(max(0, round(seconds * 1e9)))
    return message


def seconds_of(message: Duration) -> float:
    """The length of time that a message holds."""
    return message.ToNanoseconds() / 1e9
