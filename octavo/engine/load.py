"""Samples that an engine gives of itself: how busy it is, and what it has done since its start."""

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.engine.block_pool import BlockCounts
from octavo.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Load:
    """One moment of a scheduler."""

    running_sequences: int  # those still filling included
    waiting_sequences: int  # those preempted included
    waiting_prefill_tokens: int  # known tokens to be computed here and not computed yet
    blocks: BlockCounts
    steps: int
    preempted_sequences: int = 0


@dataclass(slots=True)
class Counters:
    """Sums since the engine's start."""

    requests: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    tokens_generated: int = 0
    blocks_cached: int = 0  # registered in the prefix cache
    preemptions_recompute: int = 0
    preemptions_swap: int = 0
    blocks_swapped_out: int = 0
    blocks_swapped_in: int = 0
    steps: int = 0
    computing_steps: int = 0  # those that had anything to compute, and
    step_seconds: float = 0.0  # how long the model took for them
    key_collisions: int = 0
    draft_tokens_proposed: int = 0  # guesses that had a row, and of these
    draft_tokens_accepted: int = 0  # those that were the tokens drawn
    # Slots written over slots in held blocks, summed over steps; a shared block counts once.
    live_slot_steps: int = 0
    allocated_slot_steps: int = 0
    # Blocks that tables hold beyond the distinct ones, summed over steps.
    shared_block_steps: int = 0

    @property
    def preemptions(self) -> int:
        """Of either kind."""
        return self.preemptions_recompute + self.preemptions_swap

    def reset(self) -> None:
        """Begin again; whoever counts here keeps this very object."""
        for name in self.__slots__:
            setattr(self, name, 0)

    def count_drafts(self, num_proposed: int, num_accepted: int) -> None:
        self.draft_tokens_proposed += num_proposed
        self.draft_tokens_accepted += num_accepted

    def count_step(
        self, holders: Iterable[Sequence], num_held: int, block_size: int, num_shared_empty: int = 0
    ) -> None:
        """Add a step that computed, after which these sequences hold num_held distinct blocks.

        num_shared_empty: empty slots that several of them have in their tables, but for the first.
        """
        num_blocks = num_tokens = 0
        for seq in holders:
            num_blocks += len(seq.block_ids)
            num_tokens += seq.num_computed_tokens
        empty = num_blocks * block_size - num_tokens - num_shared_empty
        self.live_slot_steps += num_held * block_size - empty
        self.allocated_slot_steps += num_held * block_size
        # Blocks that a copy still writes, or a reader still reads, are held and in no table.
        self.shared_block_steps += max(num_blocks - num_held, 0)
