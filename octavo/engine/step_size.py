"""How much one step asks of the device."""

from dataclasses import dataclass

from octavo.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepSize:
    """Counted before the step is committed."""

    rows: int  # decode rows
    tokens: int  # of prompt chunks
    decode_context: int  # tokens that the decode rows attend to
    pairs: float  # (query, key) pairs of the chunks

    @classmethod
    def of(cls, plan: StepPlan) -> "StepSize":
        """Of this plan; rows of guesses are left out."""
        tokens, pairs = 0, 0.0
        for chunk in plan.chunks:
            count, before = chunk.num_tokens, chunk.seq.num_computed_tokens
            tokens += count
            pairs += count * (before + (count + 1) / 2)
        context = sum(seq.num_computed_tokens + 1 for seq in plan.decodes)
        return cls(len(plan.decodes), tokens, context, pairs)
