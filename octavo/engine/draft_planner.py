"""Decides which guesses of prompt_lookup.py a step computes beside its decode rows.

    guess that is right with chance p  -->  p more tokens for the price of a row

A row is worth it while p tokens for its cost are more than the step's tokens for the step's cost:
nearly always with few sequences, whose steps mostly read weights, hardly ever with many. A request
may ask for guesses whatever they cost, or for none. They get what is left over, of the step's
tokens and of the pool's blocks alike.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed

from octavo.engine.block_pool import BlockPool
from octavo.engine.choice import Choice
from octavo.engine.draft_row import DraftRow
from octavo.engine.limits import Limits
from octavo.engine.prompt_lookup import PromptLookup
from octavo.engine.row_cost import RowCost
from octavo.engine.sequence import Sequence, Status
from octavo.engine.step_plan import StepPlan

Advance = Callable[[Sequence, int, Choice], None]  # books so many rows and the token drawn

ROWS_FREE, ROWS_APART = 16, 8  # steps of up to 16 rows may have any number, others every eighth
MARGIN = 1.1  # by which a guess has to be better, for what the costs leave out
LEAST_CHANCE = 0.15  # of further guesses, where a request asks for them whatever they cost


class DraftPlanner:
    """Adds drafts to plans, and takes blocks for them."""

    def __init__(
        self, pool: BlockPool, limits: Limits, max_draft_tokens: int, cost: RowCost
    ) -> None:
        """max_draft_tokens: of a sequence in a step."""
        self._pool = pool
        self._block_size = limits.block_size
        self._max_rows = limits.max_decode_rows
        self._max_draft_tokens = max_draft_tokens
        self._cost = cost

    def plan(self, plan: StepPlan, budget: int) -> None:
        """Add drafts to a plan that is otherwise complete; the step has room for budget tokens."""
        room = min(budget, self._max_rows - len(plan.decodes))
        num_free = self._pool.num_free
        step = _Step(self._cost, plan.decodes)
        counts: list[tuple[Sequence, int]] = []
        for seq in plan.decodes:
            wish = seq.sampling.prompt_lookup
            # A leased sequence's blocks are read from outside, and it ends with its first token.
            if (
                wish is False
                or seq.is_leased
                or seq.beams is not None
                or (wish is None and step.is_full)
            ):
                continue
            num_slots = (len(seq.block_ids) + num_free) * self._block_size - seq.num_tokens
            count = self._count(seq, min(room, num_slots), step)
            if count > 0:
                counts.append((seq, count))
                room -= count
                num_free -= self._count_missing_blocks(seq, count)
        excess = _excess(len(plan.decodes) + sum(count for _, count in counts))
        for seq, count in reversed(counts):
            cut = min(count, excess)
            excess -= cut
            self._add(plan, seq, count - cut)

    def commit(self, plan: StepPlan, choices: Listed[Choice], advance: Advance) -> int:
        """Book the drafts that are right, each sequence's up to its first wrong one.

        Blocks that were taken for the others go back. Returns how many were right.
        """
        num_right = 0
        for draft, choice in zip(plan.drafts, choices, strict=True):
            if draft.is_right:
                advance(draft.seq, 1, choice)
                num_right += 1
        for seq in dict.fromkeys(draft.seq for draft in plan.drafts):
            if seq.status is Status.RUNNING:
                num_blocks = -(-seq.num_computed_tokens // self._block_size)
                self._pool.free(seq.drop_blocks(num_blocks))
        return num_right

    def _count(self, seq: Sequence, room: int, step: "_Step") -> int:
        """How many of a sequence's next tokens are worth a guess."""
        if seq.lookup is None:
            seq.lookup = PromptLookup(seq.token_ids)
        if not seq.lookup.follow():
            return 0
        # The last token of an output is drawn, and never a row.
        num_left = seq.sampling.max_tokens - seq.num_output_tokens - 1
        most = min(room, self._max_draft_tokens, num_left)
        is_wanted = seq.sampling.prompt_lookup is True
        count, chance = 0, 1.0
        while count < most:
            chance *= seq.lookup.chance(count)
            is_wanted = is_wanted and (count == 0 or chance > LEAST_CHANCE)
            if not (is_wanted or step.takes(chance, seq.num_tokens)):
                break
            step.add(chance, seq.num_tokens)
            count += 1
        return count

    def _count_missing_blocks(self, seq: Sequence, count: int) -> int:
        num_blocks = -(-(seq.num_tokens + count) // self._block_size)
        return max(0, num_blocks - len(seq.block_ids))

    def _add(self, plan: StepPlan, seq: Sequence, count: int) -> None:
        assert seq.lookup is not None
        guess = seq.lookup.guess(count)
        num_known = seq.num_tokens
        for length in range(1, count + 1):
            plan.drafts.append(DraftRow(seq, guess[:length], num_known + length))
        num_missing = self._count_missing_blocks(seq, count)
        if num_missing > 0:
            seq.add_blocks(self._pool.allocate(num_missing))


def _excess(num_rows: int) -> int:
    """Drafts too many for a usual number of rows: steps of each number are recorded once."""
    return num_rows % ROWS_APART if num_rows > ROWS_FREE else 0


class _Step:
    """What a step brings and costs so far (row_cost.py): its rows, and the drafts it took."""

    def __init__(self, cost: RowCost, seqs: Listed[Sequence]) -> None:
        self._row_cost = cost
        self._num_tokens = float(len(seqs))  # that it brings, to be expected
        context = sum(len(seq.token_ids) for seq in seqs)
        self._cost = 1.0 + len(seqs) * cost.fixed + context * cost.per_token

    @property
    def is_full(self) -> bool:
        """Whether no guess is worth its row, however sure it is."""
        return MARGIN * self._num_tokens * self._row_cost.fixed >= self._cost

    def takes(self, chance: float, context: int) -> bool:
        """Whether a guess that is right with this chance is worth a row of so many tokens."""
        return chance * self._cost > MARGIN * self._num_tokens * self._row_cost.of(context)

    def add(self, chance: float, context: int) -> None:
        self._num_tokens += chance
        self._cost += self._row_cost.of(context)
