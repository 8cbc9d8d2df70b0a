"""What a router's requests are and add up to: those that run, and sums over all since its start.

Nothing is added up per token: a request that runs is looked at when somebody asks, and joins the
sums at its end.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from octavo.router.request import Request
from octavo.router.run import Run
from octavo.router.sample import Sample


@dataclass(slots=True)
class Sums:
    """Over requests; tokens as a request's usage tells them."""

    requests: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0  # of requests with a first token
    completion_tokens: int = 0
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
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            cached_prompt_tokens=report.cached_prompt_tokens,
            transferred_prompt_tokens=moved.transferred,
            cached_on_prefill_worker=moved.cached_on_prefill_worker,
            cached_on_decode_worker=moved.cached_on_decode_worker,
        )


class Activity:
    """Owner of the list of running requests and of the sums."""

    def __init__(self) -> None:
        self._running: dict[Running, None] = {}  # the oldest first
        self._ended = Sums()

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
            self._ended.add(running.sums())
            setattr(self._ended, outcome, getattr(self._ended, outcome) + 1)

    def sums(self) -> Sums:
        """Since the start, those that run included."""
        sums = Sums()
        sums.add(self._ended)
        for running in self._running:
            sums.add(running.sums())
        return sums
