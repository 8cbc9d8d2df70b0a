"""Where recorded decode steps on the CPU read what changes from step to step.

A recording holds addresses: each step's batch is copied to the same place, the front of buffers for
the largest step. Copies are numpy's: a step has just driven the processor's caches through all
weights, after which the first call into another library costs more than what it does.
"""

import numpy as np
import torch

from octavo.engine.batch import Batch
from octavo.engine.models.decoder import DecoderModel, Step


class StepInputs:
    """Buffers for the decode steps of one model."""

    def __init__(self, model: DecoderModel, max_seqs: int, max_blocks: int) -> None:
        self._model = model
        self._token_ids = np.zeros(max_seqs, np.int64)
        self._slots = np.zeros(max_seqs, np.int64)
        self._tables = np.zeros((max_seqs, max_blocks), np.int32)
        self._seq_lens = np.zeros(max_seqs, np.int32)
        self._rows = torch.arange(max_seqs + 1)
        self._query_start = self._rows.int()
        cos, sin = (torch.zeros(max_seqs, model.num_angles) for _ in range(2))
        self._angles = [(cos[: i + 1], sin[: i + 1]) for i in range(max_seqs)]  # by rows

    def holds(self, batch: Batch) -> bool:
        """Whether there is room for a batch."""
        num_seqs, num_blocks = batch.block_tables.shape
        return num_seqs <= self._tables.shape[0] and num_blocks <= self._tables.shape[1]

    def fill(self, batch: Batch) -> None:
        num_seqs, num_blocks = batch.block_tables.shape
        self._token_ids[:num_seqs] = batch.token_ids.numpy()
        self._slots[:num_seqs] = batch.slot_mapping.numpy()
        self._tables[:num_seqs, :num_blocks] = batch.block_tables.numpy()
        self._seq_lens[:num_seqs] = batch.seq_lens.numpy()
        self._model.angles(batch, self._angles[num_seqs - 1])

    def step(self, size: int) -> Step:
        """What the steps of `size` rows compute on; their tables are as wide as any."""
        inputs = Batch(
            token_ids=torch.from_numpy(self._token_ids[:size]),
            positions=self._rows[:size],  # not those of any step: their angles are what counts
            slot_mapping=torch.from_numpy(self._slots[:size]),
            block_tables=torch.from_numpy(self._tables[:size]),
            seq_lens=torch.from_numpy(self._seq_lens[:size]),
            query_start=self._query_start[: size + 1],
            num_decodes=size,
            logit_rows=self._rows[:size],
        )
        return Step.of(inputs, *self._angles[size - 1])
