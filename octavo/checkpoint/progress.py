"""How long work on a model (download, conversion) tells whoever waits for it."""

from typing import Protocol


class ProgressCallback(Protocol):
    """Called now and then, from the calling thread, with what is done of a stage."""

    def __call__(self, stage: str, num_done_bytes: int, num_total_bytes: int) -> None: ...


def silent(stage: str, num_done_bytes: int, num_total_bytes: int) -> None:
    """Nobody waits."""
