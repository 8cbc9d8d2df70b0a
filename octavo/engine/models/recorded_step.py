"""Decode steps on the CPU replayed from lists of kernel calls, one for each number of rows.

    Batch --> decode rows alone? --no--> model.forward, call by call
                    | yes
        angles computed, all copied into fixed inputs --> noted before? --no--> compute, and note
                                                                | yes
                                              replay: one call, no Python between the kernels

What cuda_graphs.py is to a GPU, without padding: a list is some 50 kB, and the first step of its
size notes it. Kernels read tables and lengths from the inputs, and leave their results in an arena
that all lists share. A model whose linear layers are not the team's kernels (oneDNN's) refuses to
be recorded at its first step, and runs as if nobody had asked.
"""

import logging
from dataclasses import dataclass

import torch

from octavo.engine.batch import Batch
from octavo.engine.fixed_inputs import FixedInputs
from octavo.engine.models.decoder import DecoderModel, Step
from octavo.kernels.cpu.arena import Arena
from octavo.kernels.cpu.program import Program
from octavo.kernels.cpu.recording import Recording

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """The calls of a step of some number of rows, and where they leave its logits."""

    program: Program
    logits_address: int


class RecordedModel:
    """A model whose decode steps over one pool are replayed; everything else it hands on."""

    def __init__(
        self, model: DecoderModel, kv: torch.Tensor, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self.num_replays = 0
        self._model = model
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_blocks = -(-max_model_len // kv.shape[4])
        self._inputs = FixedInputs(max_num_seqs, self._max_blocks, kv.device)
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None  # cos, sin of the most rows
        self._arena = Arena()
        self._steps: dict[int, _RecordedStep] = {}
        self._is_recordable = True

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        """As the model's own; what a replay returns is overwritten by the next one."""
        assert kv is self._kv, "steps are recorded over another pool"
        if not self._may_replay(batch):
            return self._model.forward(batch, kv)
        cos, sin = self._fill(batch)
        recorded = self._steps.get(batch.num_decodes)
        if recorded is None:
            inputs = self._inputs.view(batch.num_decodes, self._max_blocks)
            return self._record(Step.of(inputs, cos, sin))
        recorded.program.replay(batch.block_tables.shape[1])
        self.num_replays += 1
        shape = (batch.num_decodes, self._model.config.vocab_size)
        return self._arena.tensor_at(recorded.logits_address, shape, torch.float32)

    def _may_replay(self, batch: Batch) -> bool:
        num_seqs, width = batch.block_tables.shape
        is_decode = 0 < num_seqs == batch.num_decodes == len(batch.token_ids)
        fits = num_seqs <= self._max_num_seqs and 0 < width <= self._max_blocks
        samples_all = len(batch.logit_rows) == num_seqs
        return self._is_recordable and is_decode and fits and samples_all and batch.groups is None

    def _fill(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the step where those of its size are; returns its angles there."""
        self._inputs.fill(batch, batch.num_decodes)
        angles = self._model.angles(batch)
        if self._angles is None:
            cos, sin = (x.new_zeros((self._max_num_seqs, x.shape[1])) for x in angles)
            self._angles = cos, sin
        cos, sin = (fixed[: batch.num_decodes] for fixed in self._angles)
        return cos.copy_(angles[0]), sin.copy_(angles[1])

    def _record(self, step: Step) -> torch.Tensor:
        with Recording(self._arena) as recording:
            logits = self._model.compute(step, self._kv)
        if recording.refusal is None:
            program = Program(recording.calls)
            self._steps[len(logits)] = _RecordedStep(program, logits.data_ptr())
        else:
            self._is_recordable = False
            logger.info("decode steps are not replayed: %s", recording.refusal)
        return logits
