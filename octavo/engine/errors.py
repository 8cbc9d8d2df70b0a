"""What the engine can fail with, besides ValueError for a request that cannot be run."""

from octavo.engine.block_pool import OutOfBlocks

__all__ = [
    "AdapterConflict",
    "EngineDied",
    "InvalidLogits",
    "NoGpu",
    "NoTokenLeft",
    "OutOfBlocks",
    "TooManyAdapters",
    "UnknownAdapter",
]


class NoGpu(ValueError):
    """A GPU is asked for, and there is none; the message says what to do."""


class InvalidLogits(Exception):
    """The model gave no usable logits for a sequence; the sequence ends, others go on."""


class NoTokenLeft(InvalidLogits):
    """A sequence's own rules leave it no token to choose; others go on."""


class EngineDied(Exception):
    """The engine thread ended of an exception; nothing it ran can go on."""


class UnknownAdapter(Exception):
    """No adapter of this name is loaded."""


class AdapterConflict(Exception):
    """Another adapter of this name is loaded."""


class TooManyAdapters(Exception):
    """As many adapters are loaded as may be."""
