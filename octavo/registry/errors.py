"""What can go wrong between us and Redis, by name."""


class RegistryError(Exception):
    """Redis did not do what was asked."""


class RedisUnavailable(RegistryError):
    """No answer: refused, reset, timed out, or not speaking its protocol."""


class RedisRefused(RegistryError):
    """An answer, but an error: read-only replica, out of memory, wrong type, no permission."""


class LeaseGone(RegistryError):
    """The worker's lease is not (or no longer) the one of this epoch."""


class MalformedReply(RegistryError):
    """An answer of a shape that our own scripts never give."""


class InvalidRedisUrl(ValueError):
    """The URL does not name a Redis that can be opened; the message never repeats a password."""


class EmbeddedRedisUnavailable(Exception):
    """No redis-server binary was found, or the one that was found did not start."""
