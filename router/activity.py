"""A router's requests: those that run, how the others ended, and what was found of their prompts.

A request that runs is looked at when somebody asks, and joins the sums at its end.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from octavo.router.request import Request
from octavo.router.run import Run
from octavo.router.sample import Sample

OUTCOMES = ("completed", "failed", "cancelled")


@dataclass(slots=True)
class Sums:
    """Over requests; tokens of those with a first token, as a request's usage tells them."""

    requests: int = 0
    cached_prompt_tokens: int = 0
    transferred_prompt_tokens: int = 0
    cached_on_prefill_worker: int = 0
    cached_on_decode_worker: int = 0

    def add(self, other: "Sums") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """One request on its way."""

    request: Request
    run: Run
    samples: list[Sample]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.request.arrived_at

    @property
    def num_output_tokens(self) -> int:
        """Of all samples, so far."""
        return sum(sample.num_tokens for sample in self.samples)

    def sums(self) -> Sums:
        """What it adds, as far as it came."""
        num_output = self.num_output_tokens
        if not num_output:
            return Sums(requests=1)
        report, num_prompt = self.run.report, len(self.request.prompt_token_ids)
        moved = report.moved(num_prompt, 1 + max(num_output - len(self.samples), 0))
        return Sums(
            requests=1,
            cached_prompt_tokens=report.cached_prompt_tokens,
            transferred_prompt_tokens=moved.transferred,
            cached_on_prefill_worker=moved.cached_on_prefill_worker,
            cached_on_decode_worker=moved.cached_on_decode_worker,
        )


class Activity:
    """Owner of the list of running requests, and of the sums over those that ended."""

    def __init__(self) -> None:
        self._running: dict[Running, None] = {}  # the oldest first
        self.ended = {outcome: Sums() for outcome in OUTCOMES}

    @property
    def running(self) -> list[Running]:
        """The oldest first."""
        return list(self._running)

    @contextmanager
    def count(self, running: Running) -> Iterator[None]:
        """Count a request: as running until the block ends, then by how it ended."""
        self._running[running] = None
        outcome = "cancelled"
        try:
            yield
            outcome = "completed"
        except Exception:
            outcome = "failed"
            raise
        finally:
            if running.run.report.ended_at is not None:
                outcome = "completed"  # whoever leaves after the last reply missed nothing
            del self._running[running]
            self.ended[outcome].add(running.sums())

    def sums(self) -> Sums:
        """Since the start, those that run included."""
        sums = Sums()
        for each in (*self.ended.values(), *map(Running.sums, self._running)):
            sums.add(each)
        return sums
