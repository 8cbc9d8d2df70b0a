"""Steps as served workers note them in their logs, and the cost that is fitted to them.

    decode steps    seconds = curve(rows) + context tokens * a slope
    prompt steps    seconds = curve(tokens)

Seconds are CPU time of the engine's thread: waiting for other processes is no property of a step,
what they take of caches and memory is.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from octavo.engine.step_size import StepSize
from simulator.cost import Curve, MeasuredCost

# A step that takes so many times as long as those of its size was held up (its kind of step was
# recorded, a hypervisor took the core).
OUTLIER = 1.5
FITS = 3


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step."""

    size: StepSize
    cpu_s: float


class StepReader:
    """Reads what a worker's log got since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[StepTime]:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            lines = log.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self._offset += sum(map(len, lines))
        events = (json.loads(line) for line in lines if b'"message": "step"' in line)
        return [_step_of(event) for event in events]


def _step_of(event: dict[str, float]) -> StepTime:
    rows, tokens, context = (
        int(event[name]) for name in ("rows", "prompt_tokens", "context_tokens")
    )
    return StepTime(StepSize(rows, tokens, context, event["attended_pairs"]), event["cpu_s"])


def fit_cost(steps: Sequence[StepTime]) -> MeasuredCost:
    """Of a run's steps; those that have both rows and chunks say nothing about either."""
    decodes = [step for step in steps if not step.size.tokens]
    rows, slope = _fit_decodes(decodes)
    by_tokens: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        if not step.size.rows:
            by_tokens[step.size.tokens].append(step.cpu_s)
    tokens = tuple((count, median(seconds)) for count, seconds in sorted(by_tokens.items()))
    return MeasuredCost(rows, tokens, slope)


def _fit_decodes(steps: Sequence[StepTime]) -> tuple[Curve, float]:
    """Seconds by rows and of a token of context; least squares without steps that were held up."""
    for _ in range(FITS):
        levels = sorted({step.size.rows for step in steps})
        place = {rows: column for column, rows in enumerate(levels)}
        facts = np.zeros((len(steps), len(levels) + 1))
        for line, step in zip(facts, steps, strict=True):
            line[place[step.size.rows]] = 1.0
            line[-1] = step.size.decode_context
        seconds = np.array([step.cpu_s for step in steps])
        found = np.linalg.lstsq(facts, seconds)[0]
        if found[-1] < 0:
            found = np.append(np.linalg.lstsq(facts[:, :-1], seconds)[0], 0.0)
        steps = [
            step
            for step, expected in zip(steps, facts @ found, strict=True)
            if step.cpu_s < OUTLIER * expected
        ]
    return tuple((rows, float(found[place[rows]])) for rows in levels), float(found[-1])
