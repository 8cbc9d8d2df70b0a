"""How long a step takes: interpolated from measurements, or from a device's roofline."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.engine.step_plan import StepPlan

Curve = tuple[tuple[float, float], ...]  # (size, seconds), sizes rising


class StepCost(Protocol):
    """What a simulated engine asks of its device."""

    def seconds(self, plan: StepPlan) -> float: ...


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a plan asks the device to do."""

    rows: int  # decode rows
    tokens: int  # of prompt chunks
    decode_context: int  # tokens that the decode rows attend to
    pairs: float  # (query, key) pairs of the chunks

    @classmethod
    def of(cls, plan: StepPlan) -> "StepSize":
        tokens, pairs = 0, 0.0
        for chunk in plan.chunks:
            count, before = chunk.num_tokens, chunk.seq.num_computed_tokens
            tokens += count
            pairs += count * (before + (count + 1) / 2)
        context = sum(seq.num_computed_tokens + 1 for seq in plan.decodes)
        return cls(len(plan.decodes), tokens, context, pairs)


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Curves over rows and tokens without their attention, which is counted apart."""

    decode_rows: Curve
    prompt_tokens: Curve
    context_token_s: float  # of a decode row, one token of its context
    pair_s: float  # of a chunk, one (query, key) pair

    def seconds(self, plan: StepPlan) -> float:
        size = StepSize.of(plan)
        seconds = self.context_token_s * size.decode_context + self.pair_s * size.pairs
        if size.rows:
            seconds += _at(self.decode_rows, size.rows)
        if size.tokens:
            seconds += _at(self.prompt_tokens, size.tokens)
        if size.rows and size.tokens:
            seconds -= self.decode_rows[0][1]  # both read the weights, a step reads them once
        return seconds


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The larger of moving a step's bytes and doing its arithmetic, and what every step costs."""

    weight_bytes: float
    num_parameters: float  # that every token is multiplied with
    kv_token_bytes: float
    pair_flop: float  # of one (query, key) pair: 4 * layers * heads * head_dim
    bytes_per_s: float
    flop_per_s: float
    step_s: float  # launches, scheduling

    def seconds(self, plan: StepPlan) -> float:
        size = StepSize.of(plan)
        context = size.decode_context + sum(c.seq.num_computed_tokens for c in plan.chunks)
        num_bytes = self.weight_bytes + self.kv_token_bytes * context
        flop = 2 * self.num_parameters * (size.rows + size.tokens)
        flop += self.pair_flop * (size.pairs + size.decode_context)
        return self.step_s + max(num_bytes / self.bytes_per_s, flop / self.flop_per_s)


def _at(curve: Curve, size: float) -> float:
    """Linear between the points, and beyond the last with the last slope."""
    (x0, y0), (x1, y1) = curve[-2:]
    if size > x1:
        return y1 + (size - x1) * (y1 - y0) / (x1 - x0)
    xs, ys = zip(*curve, strict=True)
    return float(np.interp(size, xs, ys))
