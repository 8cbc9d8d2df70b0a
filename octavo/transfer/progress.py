"""How much of one prompt is computed: written by its prefill stream, read by its pull."""

import asyncio
from dataclasses import dataclass, field

from octavo.internal.v1alpha1 import worker_pb2

UNFINISHED = 0  # FINISH_REASON_UNSPECIFIED


def are_finished(first: worker_pb2.PullKvResponse.Completed) -> bool:
    """Whether the first token ended every sample: nothing is to be decoded, no block is needed."""
    return all(token.finish_reason != UNFINISHED for token in first.tokens) and not (
        first.HasField("candidates")
    )


@dataclass(slots=True)
class PromptProgress:
    """Blocks are complete when all their layers are written; a complete block never changes."""

    num_tokens: int
    block_size: int
    block_ids: tuple[int, ...] = ()
    num_computed_tokens: int = 0
    first: worker_pb2.PullKvResponse.Completed | None = None  # tokens, once they are sampled
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_tokens // self.block_size)

    @property
    def num_complete_blocks(self) -> int:
        if self.num_computed_tokens >= self.num_tokens:
            return self.num_blocks
        return self.num_computed_tokens // self.block_size

    def num_used_slots(self, block: int) -> int:
        """Slots of the prompt's block-th block that hold a token."""
        return min(self.block_size, self.num_tokens - block * self.block_size)

    def needs_no_more(self, next_block: int) -> bool:
        """Whether a pull that has everything before `next_block` may end."""
        if self.first is None:
            return False
        return next_block >= self.num_blocks or are_finished(self.first)

    def advance(self, block_ids: tuple[int, ...], num_computed_tokens: int) -> None:
        self.block_ids = block_ids
        self.num_computed_tokens = num_computed_tokens
        self._changed.set()

    def finish(self, first: worker_pb2.PullKvResponse.Completed) -> None:
        self.first = first
        self._changed.set()

    async def change(self) -> None:
        """Wait for the next `advance` or `finish`; one reader only."""
        self._changed.clear()
        await self._changed.wait()
