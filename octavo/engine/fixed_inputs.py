"""Where recorded decode steps read what changes from step to step.

A recording holds addresses. The batch of each step is copied into the same buffers before it is
replayed, by CUDA graphs (cuda_graphs.py) and by the CPU's programs (models/recorded_step.py) alike.
"""

import torch

from octavo.engine.batch import Batch


class FixedInputs:
    """The inputs of every recording: buffers for the largest step, of which one reads the front."""

    def __init__(self, max_seqs: int, max_blocks: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._slots = torch.full((max_seqs,), -1, dtype=torch.int64, device=device)
        self._tables = torch.zeros((max_seqs, max_blocks), dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(max_seqs, dtype=torch.int32, device=device)
        self._rows = torch.arange(max_seqs + 1, device=device)
        self._query_start = self._rows.int()

    def fill(self, batch: Batch, size: int) -> None:
        """The batch's rows, then padding up to size."""
        num_seqs, width = batch.block_tables.shape
        self._token_ids[:num_seqs].copy_(batch.token_ids)
        self._positions[:num_seqs].copy_(batch.positions)
        self._slots[:num_seqs].copy_(batch.slot_mapping)
        self._tables[:num_seqs, :width].copy_(batch.block_tables)
        self._seq_lens[:num_seqs].copy_(batch.seq_lens)
        if num_seqs < size:
            self._slots[num_seqs:size].fill_(-1)
            self._seq_lens[num_seqs:size].zero_()

    def clear(self, size: int) -> None:
        """Nothing but padding."""
        self._slots[:size].fill_(-1)
        self._seq_lens[:size].zero_()

    def view(self, size: int, width: int) -> Batch:
        return Batch(
            token_ids=self._token_ids[:size],
            positions=self._positions[:size],
            slot_mapping=self._slots[:size],
            block_tables=self._tables[:size, :width],
            seq_lens=self._seq_lens[:size],
            query_start=self._query_start[: size + 1],
            num_decodes=size,
            logit_rows=self._rows[:size],
        )
