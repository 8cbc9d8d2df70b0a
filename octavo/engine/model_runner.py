"""Turns a StepPlan into tensors, runs the model and samples.

StepPlan --> Batch --> model.forward --> logits --> token_choice --> tokens
   | no chunks:         kept rows (decode_rows.py)
   | with chunks:       new arrays
"""

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.adapter_rows import find_adapter_rows
from octavo.engine.batch import Batch
from octavo.engine.choice import Choice
from octavo.engine.cores import AnyCore, Cores
from octavo.engine.decode_rows import DecodeRows
from octavo.engine.draft_row import BatchRow
from octavo.engine.shared_prefixes import GroupPolicy, find_groups, pack_groups
from octavo.engine.step_plan import StepPlan
from octavo.engine.token_choice import choose, score_prompts
from octavo.kernels.prefix_groups import PrefixGroups


class Model(Protocol):
    """What the runner needs of a decoder."""

    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor: ...


class ModelRunner:
    """Executes plans on one model and one pool tensor `kv` (see kv_cache.py)."""

    def __init__(
        self,
        model: Model,
        kv: torch.Tensor,
        policy: GroupPolicy,
        rows: DecodeRows,
        cores: Cores | None = None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._block_size = kv.shape[4]
        self.policy = policy
        self._rows = rows
        self._cores = cores or AnyCore()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Choice]:
        """The token behind each of plan.sampled, in its order, and plan.prompt_scores."""
        if plan.num_seqs == 0:
            return []
        batch = self.build_batch(plan)
        with self._cores.at_work():
            logits = self._model.forward(batch, self._kv)
            if plan.scored:
                num_rows = plan.num_sampled_rows
                plan.prompt_scores = score_prompts(logits[num_rows:], plan.scored)
                logits = logits[:num_rows]
            if plan.siblings:
                logits = torch.cat([logits, logits[plan.sibling_rows]])
            if plan.sampled:
                return choose(logits, plan.sampled)
        if self._kv.is_cuda:
            # Whoever hears of the chunk reads its blocks on another stream.
            torch.cuda.current_stream(self._kv.device).synchronize()
        return []

    def build_batch(self, plan: StepPlan) -> Batch:
        """T tokens of S sequences, decode rows first (shapes: batch.py)."""
        batch = self._mix(plan) if plan.chunks else self._rows.update(plan.single_rows)
        groups = self._group_decodes(batch)
        adapters = find_adapter_rows(plan, batch.query_start, batch.logit_rows)
        if self._kv.is_cuda:
            batch = self._copied(batch)
            adapters = tuple(rows.on(self._kv.device) for rows in adapters)
        if groups is None and not adapters:
            return batch
        return replace(batch, groups=groups, adapters=adapters)

    def _mix(self, plan: StepPlan) -> Batch:
        """Of a step with chunks."""
        seqs = plan.single_rows + [chunk.seq for chunk in plan.chunks]
        num_rows = np.ones(len(seqs), dtype=np.int64)
        num_rows[plan.num_single_rows :] = [chunk.num_tokens for chunk in plan.chunks]
        first = np.array([seq.num_computed_tokens for seq in seqs], dtype=np.int64)
        query_start = np.zeros(len(seqs) + 1, dtype=np.int64)
        np.cumsum(num_rows, out=query_start[1:])

        owner = np.repeat(np.arange(len(seqs)), num_rows)  # [T]
        positions = np.arange(query_start[-1]) - np.repeat(query_start[:-1] - first, num_rows)
        tables = self._pad_tables(seqs, first + num_rows)
        blocks = tables[owner, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size

        sampled = {id(seq) for seq in plan.sampled}
        is_sampled = np.array([id(seq) in sampled for seq in seqs], dtype=bool)
        return Batch(
            token_ids=torch.from_numpy(_token_ids(plan)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(slots),
            block_tables=torch.from_numpy(tables),
            seq_lens=torch.from_numpy((first + num_rows).astype(np.int32)),
            query_start=torch.from_numpy(query_start.astype(np.int32)),
            num_decodes=plan.num_single_rows,
            logit_rows=torch.from_numpy(_logit_rows(plan, query_start, is_sampled)),
        )

    def _group_decodes(self, batch: Batch) -> PrefixGroups | None:
        num_decodes = batch.num_decodes
        tables = batch.block_tables[:num_decodes].numpy()
        seq_lens = batch.seq_lens[:num_decodes].numpy()
        groups = find_groups(tables, seq_lens, self._block_size, self.policy)
        if not groups:
            return None
        return pack_groups(groups, num_decodes, self._block_size, self._kv.device)

    def _pad_tables(
        self, seqs: list[BatchRow], seq_lens: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """[S, max_blocks] of the blocks that hold seq_lens tokens, padded with 0."""
        num_blocks = (-(-seq_lens // self._block_size)).tolist()
        tables = np.zeros((len(seqs), max(num_blocks)), dtype=np.int32)
        for row, seq, count in zip(tables, seqs, num_blocks, strict=True):
            row[:count] = seq.packed_table[:count]
        return tables

    def _copied(self, batch: Batch) -> Batch:
        """The batch, which has no groups yet, on the GPU."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            # Pinned, so that the host goes on while it is copied; torch keeps it until then.
            return tensor.pin_memory().to(self._kv.device, non_blocking=True)

        return Batch(
            token_ids=copied(batch.token_ids),
            positions=copied(batch.positions),
            slot_mapping=copied(batch.slot_mapping),
            block_tables=copied(batch.block_tables),
            seq_lens=copied(batch.seq_lens),
            query_start=copied(batch.query_start),
            num_decodes=batch.num_decodes,
            logit_rows=copied(batch.logit_rows),
        )


def _logit_rows(
    plan: StepPlan, query_start: npt.NDArray[np.int64], is_sampled: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Rows of the batch: of the sampled sequences, then the scored chunks' prompt_rows."""
    rows = query_start[1:][is_sampled] - 1
    if not plan.scored:
        return rows
    starts = dict(zip(plan.chunks, query_start[plan.num_single_rows :].tolist(), strict=False))
    of_prompts = [
        starts[chunk] - chunk.seq.num_computed_tokens + np.array(chunk.prompt_rows, dtype=np.int64)
        for chunk in plan.scored
    ]
    return np.concatenate([rows, *of_prompts])


def _token_ids(plan: StepPlan) -> npt.NDArray[np.int64]:
    token_ids = [row.newest_token_id for row in plan.single_rows]
    for chunk in plan.chunks:
        start = chunk.seq.num_computed_tokens
        token_ids += chunk.seq.token_ids[start : start + chunk.num_tokens]
    return np.array(token_ids, dtype=np.int64)
