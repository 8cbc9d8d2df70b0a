"""Sees every forward pass of this process: when it began and ended, by clock and by CPU time.

What an engine does outside of its model is what lies between the end of one pass and the begin of
the next: sampling, commit, telling the event loop, scheduling, building the batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from octavo.engine.batch import Batch
from octavo.engine.models import DecoderModel
from octavo.engine.models.recorded_step import RecordedModel

Forward = Callable[[Any, Batch, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass; times in seconds, CPU time of the thread that made it."""

    num_decodes: int
    num_seqs: int
    cpu_begin: float
    cpu_end: float
    begin: float
    end: float


class ForwardProbe:
    """Notes passes inside its block, oldest first."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self._originals = {kind: kind.forward for kind in (DecoderModel, RecordedModel)}
        self._is_inside = False  # a recorded model hands prompts on to its decoder

    def __enter__(self) -> Self:
        for kind, original in self._originals.items():
            kind.forward = self._noting(original)
        return self

    def _noting(self, original: Forward) -> Forward:
        def forward(model: Any, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
            if self._is_inside:
                return original(model, batch, kv)
            self._is_inside = True
            cpu_begin, begin = time.thread_time(), time.perf_counter()
            try:
                logits = original(model, batch, kv)
            finally:
                self._is_inside = False
            self.passes.append(
                Pass(
                    batch.num_decodes,
                    len(batch.seq_lens),
                    cpu_begin,
                    time.thread_time(),
                    begin,
                    time.perf_counter(),
                )
            )
            return logits

        return forward

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for kind, original in self._originals.items():
            kind.forward = original

    @property
    def model_cpu_s(self) -> float:
        """CPU time of all passes."""
        return sum(one.cpu_end - one.cpu_begin for one in self.passes)

    def decode_gaps(self, num_seqs: int) -> tuple[list[float], list[float]]:
        """(CPU, clock) seconds between two passes that decode exactly `num_seqs` sequences."""
        cpu: list[float] = []
        clock: list[float] = []
        for before, after in zip(self.passes, self.passes[1:], strict=False):
            if {p.num_decodes for p in (before, after)} == {num_seqs} and (
                before.num_seqs == after.num_seqs == num_seqs
            ):
                cpu.append(after.cpu_begin - before.cpu_end)
                clock.append(after.begin - before.end)
        return cpu, clock
