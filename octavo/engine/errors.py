"""What the engine can fail with, besides ValueError for a request that cannot be run."""

from octavo.engine.block_pool import OutOfBlocks

__all__ = ["EngineDied", "InvalidLogits", "OutOfBlocks"]


class InvalidLogits(Exception):
    """The model gave no usable logits for a sequence; the sequence ends, others go on."""


class EngineDied(Exception):
    """The engine thread ended of an exception; nothing it ran can go on."""
