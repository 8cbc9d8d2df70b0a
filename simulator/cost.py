"""How long a step takes: interpolated from measurements, or from a device's roofline."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.engine.step_plan import StepPlan
from octavo.engine.step_size import StepSize

Curve = tuple[tuple[float, float], ...]  # (size, seconds), sizes rising


class StepCost(Protocol):
    """What a simulated engine asks of its device."""

    def seconds(self, plan: StepPlan) -> float: ...


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Curves over rows, without their attention, and over tokens of prompts of one length."""

    decode_rows: Curve
    prompt_tokens: Curve
    context_token_s: float  # of a decode row, one token of its context

    def seconds(self, plan: StepPlan) -> float:
        size = StepSize.of(plan)
        seconds = self.context_token_s * size.decode_context
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
    """Linear between the points, the first one's before them, with the last slope beyond."""
    if len(curve) > 1 and size > curve[-1][0]:
        (x0, y0), (x1, y1) = curve[-2:]
        return y1 + (size - x1) * (y1 - y0) / (x1 - x0)
    xs, ys = zip(*curve, strict=True)
    return float(np.interp(size, xs, ys))
