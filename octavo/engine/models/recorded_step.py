"""Decode steps on the CPU replayed from lists of kernel calls, one for each number of rows.

    Batch --> decode rows alone? --no--> model.forward, call by call
                    | yes
        angles computed, all copied into fixed inputs --> noted before? --no--> compute, and note
                                                                | yes
                                              replay: one call, no Python between the kernels

What cuda_graphs.py is to a GPU, without padding: a list is some 60 kB, and the first step of its
size notes it. Kernels read tables and lengths from the inputs, and leave their results in an arena
that all lists share. A model whose linear layers are not the team's kernels (oneDNN's) refuses to
be recorded at its first step, and runs as if nobody had asked.
"""

import logging
from dataclasses import dataclass

import torch

from octavo.engine.batch import Batch
from octavo.engine.models.decoder import DecoderModel
from octavo.engine.models.step_inputs import StepInputs
from octavo.kernels.cpu.arena import Arena
from octavo.kernels.cpu.program import Program
from octavo.kernels.cpu.recording import Recording

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """The calls of a step of some number of rows, and the logits they write."""

    program: Program
    logits: torch.Tensor  # [rows, vocab_size], in the arena


class RecordedModel:
    """A model whose decode steps over one pool are replayed; everything else it hands on."""

    def __init__(
        self, model: DecoderModel, kv: torch.Tensor, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self.num_replays = 0
        self._model = model
        self._kv = kv
        self._inputs = StepInputs(model, max_num_seqs, -(-max_model_len // kv.shape[4]))
        self._arena = Arena()
        self._steps: dict[int, _RecordedStep] = {}  # by rows
        self._is_recordable = True

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        """As the model's own; what a replay returns is overwritten by the next one."""
        assert kv is self._kv, "steps are recorded over another pool"
        if not (self._is_recordable and _is_decode(batch) and self._inputs.holds(batch)):
            return self._model.forward(batch, kv)
        self._inputs.fill(batch)
        recorded = self._steps.get(batch.num_decodes)
        if recorded is None:
            return self._record(batch.num_decodes)
        recorded.program.replay(batch.block_tables.shape[1])
        self.num_replays += 1
        return recorded.logits

    def _record(self, size: int) -> torch.Tensor:
        step = self._inputs.step(size)
        with Recording(self._arena) as recording:
            logits = self._model.compute(step, self._kv)
        if recording.refusal is None:
            lasting = self._arena.lasting(logits)
            self._steps[size] = _RecordedStep(Program(recording.calls), lasting)
        else:
            self._is_recordable = False
            logger.info("decode steps are not replayed: %s", recording.refusal)
        return logits


def _is_decode(batch: Batch) -> bool:
    """Whether every row is a decode row of the model by itself, and sampled."""
    num_rows = batch.num_decodes
    return (
        batch.groups is None
        and not batch.adapters
        and (0 < num_rows == len(batch.token_ids) == len(batch.seq_lens) == len(batch.logit_rows))
    )
