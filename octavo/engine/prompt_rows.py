"""Plans a sequence's known tokens, and the rows behind which log-probabilities are wanted."""

from octavo.engine.sequence import Sequence
from octavo.engine.step_plan import Chunk, StepPlan

# Of one step at most: each has logits of the whole vocabulary.
MAX_PROMPT_ROWS = 256


def plan_rows(plan: StepPlan, seq: Sequence, budget: int) -> int:
    """Plan as many missing tokens as the budget allows; returns what is left of it."""
    num_tokens = min(seq.num_missing_tokens, budget)
    if seq.num_missing_tokens == 1:
        plan.decodes.append(seq)
    elif seq.num_unscored_rows > 0:
        num_tokens = _plan_scored_rows(plan, seq, num_tokens)
    else:
        plan.add(Chunk(seq, num_tokens))
    return budget - num_tokens


def _plan_scored_rows(plan: StepPlan, seq: Sequence, num_tokens: int) -> int:
    """Plan a chunk of a sequence's next num_tokens tokens; returns how many it has.

    It is cut short, to nothing if need be, where the step has enough rows.
    """
    first = max(seq.num_computed_tokens, seq.num_scored_rows)
    room = MAX_PROMPT_ROWS - plan.num_prompt_rows
    stop = min(seq.num_computed_tokens + num_tokens, seq.num_prompt_tokens - 1)
    if stop - first > room:
        stop = first + room
        num_tokens = stop - seq.num_computed_tokens
    if num_tokens > 0:
        plan.add(Chunk(seq, num_tokens, range(first, max(first, stop))))
    return num_tokens
