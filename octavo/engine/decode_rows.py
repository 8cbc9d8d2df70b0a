"""The rows of steps that only decode, kept from one step to the next at fixed addresses.

    step n:    row 0 of A   row 1 of B   row 2 of C
    step n+1:  row 0 of A   row 1 of B   row 2 of C     written: tokens, positions, and the
               row 3 of a guess of B's next token       table rows that changed

Only `update` writes. A batch of these rows is a view of their front: the next update changes it.
"""

from collections.abc import Sequence as Listed

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.batch import Batch
from octavo.engine.draft_row import BatchRow


class DecodeRows:
    """Room for max_rows rows whose tables have up to max_blocks entries; row i is seqs[i]'s.

    Past a sequence's blocks its row of `tables` holds whatever stood there before.
    """

    def __init__(self, max_rows: int, max_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self.token_ids = torch.zeros(max_rows, dtype=torch.int64)
        self.positions = torch.zeros(max_rows, dtype=torch.int64)
        self.slots = torch.zeros(max_rows, dtype=torch.int64)
        self.tables = torch.zeros((max_rows, max_blocks), dtype=torch.int32)
        self.seq_lens = torch.zeros(max_rows, dtype=torch.int32)
        self.query_start = torch.arange(max_rows + 1, dtype=torch.int32)
        self.rows = torch.arange(max_rows)
        # The same memory to numpy, whose calls cost a third of torch's.
        self._token_ids = self.token_ids.numpy()
        self._positions = self.positions.numpy()
        self._slots = self.slots.numpy()
        self._tables = self.tables.numpy()
        self._seq_lens = self.seq_lens.numpy()
        self._row_starts = np.arange(max_rows, dtype=np.int64) * max_blocks
        # What each row of the tables was copied from; a sequence packs a changed table anew.
        self._packed: list[npt.NDArray[np.int32] | None] = [None] * max_rows
        self._batch = self._view(0, 0)

    def update(self, seqs: Listed[BatchRow]) -> Batch:
        """Rows of these sequences' newest tokens, all others of which have their KV in the cache
        or, before a guess, in a row of this step.

        Returns a batch of them without groups.
        """
        num_seqs = len(seqs)
        for row, seq in enumerate(seqs):
            packed = seq.packed_table
            if packed is not self._packed[row]:
                self._packed[row] = packed
                self._tables[row, : len(packed)] = packed
        positions, slots = self._positions[:num_seqs], self._slots[:num_seqs]
        positions[:] = [seq.num_computed_tokens for seq in seqs]
        self._token_ids[:num_seqs] = [seq.newest_token_id for seq in seqs]
        np.add(positions, 1, out=self._seq_lens[:num_seqs], casting="same_kind")
        columns, offsets = np.divmod(positions, self._block_size)
        blocks = self._tables.ravel()[self._row_starts[:num_seqs] + columns]
        np.multiply(blocks, self._block_size, out=slots, dtype=np.int64)
        slots += offsets
        width = int(columns.max()) + 1
        if self._batch.block_tables.shape != (num_seqs, width):
            self._batch = self._view(num_seqs, width)
        return self._batch

    def _view(self, num_seqs: int, width: int) -> Batch:
        return Batch(
            token_ids=self.token_ids[:num_seqs],
            positions=self.positions[:num_seqs],
            slot_mapping=self.slots[:num_seqs],
            block_tables=self.tables[:num_seqs, :width],
            seq_lens=self.seq_lens[:num_seqs],
            query_start=self.query_start[: num_seqs + 1],
            num_decodes=num_seqs,
            logit_rows=self.rows[:num_seqs],
        )
