"""A line in the log for each step, at level debug: what it computed and how long it took.

step rows=16 prompt_tokens=0 context_tokens=3072 attended_pairs=0 seconds=0.0712 cpu_s=0.0709
"""

import logging
import time
from dataclasses import dataclass, field

from octavo.engine.step_plan import StepPlan
from octavo.engine.step_size import StepSize

logger = logging.getLogger(__name__)


def is_logged() -> bool:
    """Whether anybody reads such lines; a step that nobody reads of pays for this question."""
    return logger.isEnabledFor(logging.DEBUG)


@dataclass(slots=True)
class StepLog:
    """One step, from its scheduling on; used by the thread that makes it."""

    _began_s: float = field(default_factory=time.thread_time)
    _size: StepSize | None = None

    def planned(self, plan: StepPlan) -> None:
        """Before the commit, which moves its sequences on."""
        if plan.num_seqs:
            self._size = StepSize.of(plan)

    def ended(self, plan: StepPlan) -> None:
        """Write the line, unless the step computed nothing."""
        if self._size is None:
            return
        fields = {
            "rows": self._size.rows,
            "prompt_tokens": self._size.tokens,
            "context_tokens": self._size.decode_context,
            "attended_pairs": self._size.pairs,
            "seconds": plan.seconds,
            "cpu_s": time.thread_time() - self._began_s,
        }
        logger.debug("step", extra={"fields": fields})
