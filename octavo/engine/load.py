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


@dataclass(slots=True)
class Counters:
    """Sums since the engine's start."""

    requests: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    tokens_generated: int = 0
    blocks_cached: int = 0  # registered in the prefix cache
    preemptions: int = 0
    steps: int = 0
    key_collisions: int = 0
    draft_tokens_proposed: int = 0  # guesses that had a row, and of these
    draft_tokens_accepted: int = 0  # those that were the tokens drawn
    # Slots written over slots in held blocks, summed over steps; a shared block counts once.
    live_slot_steps: int = 0
    allocated_slot_steps: int = 0

    def count_drafts(self, num_proposed: int, num_accepted: int) -> None:
        self.draft_tokens_proposed += num_proposed
        self.draft_tokens_accepted += num_accepted

    def count_step(
        self, holders: Iterable[Sequence], num_held: int, block_size: int, *, did_compute: bool
    ) -> None:
        """Add a step after which these sequences hold num_held distinct blocks."""
        self.steps += 1
        if did_compute:  # one that only shows life says nothing about how full the blocks are
            # Only private blocks are partly empty: shared ones are full.
            empty = sum(
                len(seq.block_ids) * block_size - seq.num_computed_tokens for seq in holders
            )
            self.live_slot_steps += num_held * block_size - empty
            self.allocated_slot_steps += num_held * block_size
