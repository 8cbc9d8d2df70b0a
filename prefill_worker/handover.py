"""What a request's two streams share on a prefill worker: its prompt's progress, and its end.

Prefill stream --offer--> Handover <--take-- PullKv stream
     |  advance, token       |                    |
     +---------------------->| progress --------->| chunks, first token
     |<---- acknowledged ----|<-------------------+ last block acknowledged
"""

import asyncio
import hmac
from dataclasses import dataclass, field

from octavo.rpc.errors import InvalidRequest, Precondition
from octavo.transfer.progress import PromptProgress
from octavo.worker.attempts import Attempts

PREFILL = "prefill"
PULL = "pull"


@dataclass(slots=True)
class Handover:
    """State of one attempt."""

    prompt_digest: bytes = b""
    progress: PromptProgress | None = None  # None until the Prefill stream came
    is_pulled: bool = False
    num_transferred_blocks: int = 0
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, prompt_digest: bytes, progress: PromptProgress, is_pulled: bool) -> None:
        """The Prefill stream came: this is what it can hand over."""
        self.prompt_digest = prompt_digest
        self.progress = progress
        self.is_pulled = is_pulled

    def take(self, prompt_digest: bytes, first_block: int) -> PromptProgress:
        """The PullKv stream came, too: check that both mean the same prompt.

        Raises:
            Precondition: they do not, or nobody was to pull.
            InvalidRequest: the caller cannot hold the blocks it says it holds.
        """
        if self.progress is None or not self.is_pulled:
            raise Precondition("open.key", "this request's blocks are not to be pulled")
        if not hmac.compare_digest(prompt_digest, self.prompt_digest):
            raise Precondition(
                "open.prompt_digest", "the pull means another prompt than the prefill request"
            )
        num_full_blocks = self.progress.num_tokens // self.progress.block_size
        if first_block > num_full_blocks:
            raise InvalidRequest(
                "open.first_block",
                f"open.first_block must be 0 to {num_full_blocks}, the prompt's full blocks, "
                f"got {first_block}",
            )
        return self.progress

    def acknowledge(self, num_blocks: int) -> None:
        """The last block arrived."""
        self.num_transferred_blocks = num_blocks
        self.acknowledged.set()


Handovers = Attempts[Handover]
