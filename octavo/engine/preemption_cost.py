"""What it would cost to preempt sequences each way, in seconds of the engine thread.

    recompute   tokens in blocks that nobody else holds  *  seconds a token
    swap        2 * blocks                               *  seconds a block     (out now, in later)

Both paces are means over what was done last, weighted by its size: of the steps that computed
prompts, and of the copies. Blocks that others hold are found in the prefix cache later, so they
would not be computed again; they are copied all the same, as the others may end first.

Until a step has computed a prompt, rows of decode steps stand for tokens: they cost more, as a
decode step reads all weights for few of them. Until a block was copied, copies count nothing.
"""

from collections import Counter
from collections.abc import Iterable

from octavo.engine.block_pool import BlockPool
from octavo.engine.sequence import Sequence
from octavo.engine.step_plan import StepPlan

MEMORY = 0.9  # share of the past that a new measurement keeps


class Pace:
    """Seconds a unit, the last measurements first."""

    def __init__(self) -> None:
        self._units = 0.0
        self._seconds = 0.0

    def add(self, num_units: int, seconds: float) -> None:
        self._units = self._units * MEMORY + num_units
        self._seconds = self._seconds * MEMORY + seconds

    @property
    def is_known(self) -> bool:
        return self._units > 0

    @property
    def seconds(self) -> float:
        """Of one unit; 0 while unknown."""
        return self._seconds / self._units if self.is_known else 0.0


class PreemptionCost:
    """Measures steps and copies, and compares."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._prompt_token = Pace()
        self._decode_row = Pace()
        self.block_copy = Pace()

    def add_step(self, plan: StepPlan) -> None:
        """A step took plan.seconds."""
        pace = self._prompt_token if plan.chunks else self._decode_row
        pace.add(plan.num_tokens, plan.seconds)

    def favours_swap(self, seqs: Iterable[Sequence], pool: BlockPool) -> bool:
        """Whether copying these sequences' blocks out and in takes less than computing again."""
        uses = Counter(
            block_id for seq in seqs for block_id in seq.computed_blocks(self._block_size)
        )
        num_private = sum(pool.num_owners(block_id) == count for block_id, count in uses.items())
        pace = self._prompt_token if self._prompt_token.is_known else self._decode_row
        recompute_s = num_private * self._block_size * pace.seconds
        return 2 * len(uses) * self.block_copy.seconds < recompute_s
