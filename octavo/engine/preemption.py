"""Whom to stop when the pool is exhausted, and how: one policy today, `recompute`."""

from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool
from octavo.engine.sequence import Sequence, Status


def choose_victims(running: Arrivals) -> list[Sequence]:
    """The latest arrival of `running`: one sequence, or all samples of a request.

    Samples go together: those left would hold the blocks that they share.

    Leased sequences are passed over: somebody may be reading their blocks, and they got every
    block they will ever need at admission. The caller is never leased, so one is always found.
    """
    latest = next(seq for seq in reversed(running) if not seq.is_leased)
    return running.samples(latest.arrival)


def recompute(seq: Sequence, pool: BlockPool) -> None:
    """Give the victim's blocks back; its prompt and output so far will be computed again.

    What the prefix cache still holds by then is found and not computed.
    """
    pool.free(seq.take_blocks())
    seq.num_computed_tokens = 0
    seq.num_preemptions += 1
    seq.status = Status.PREEMPTED
