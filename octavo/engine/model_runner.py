"""Turns a StepPlan into tensors, runs the model and samples.

    StepPlan --> numpy buffers --> Batch --> model.forward --> logits --> token_choice --> tokens

The buffers live as long as the runner; a step writes their front and hands out views of it.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.batch import Batch
from octavo.engine.choice import Choice
from octavo.engine.cores import AnyCore, Cores
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
        self, model: Model, kv: torch.Tensor, policy: GroupPolicy, cores: Cores | None = None
    ) -> None:
        self._model = model
        self._kv = kv
        self._block_size = kv.shape[4]
        self.policy = policy
        self._cores = cores or AnyCore()
        self._tables = np.zeros(0, dtype=np.int32)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Choice]:
        """The next token of each sequence of plan.sampled, in its order, and plan.prompt_scores."""
        if plan.num_seqs == 0:
            return []
        batch = self.build_batch(plan)
        with self._cores.at_work():
            logits = self._model.forward(batch, self._kv)
        if plan.scored:
            plan.prompt_scores = score_prompts(logits[len(plan.sampled) :], plan.scored)
            logits = logits[: len(plan.sampled)]
        if plan.sampled:
            return choose(logits, plan.sampled)
        if self._kv.is_cuda:
            # Whoever hears of the chunk reads its blocks on another stream.
            torch.cuda.current_stream(self._kv.device).synchronize()
        return []

    def build_batch(self, plan: StepPlan) -> Batch:
        """T tokens of S sequences, decode rows first (shapes: batch.py)."""
        seqs = plan.decodes + [chunk.seq for chunk in plan.chunks]
        num_rows = np.ones(len(seqs), dtype=np.int64)
        num_rows[len(plan.decodes) :] = [chunk.num_tokens for chunk in plan.chunks]
        first = np.array([seq.num_computed_tokens for seq in seqs], dtype=np.int64)
        query_start = np.zeros(len(seqs) + 1, dtype=np.int64)
        np.cumsum(num_rows, out=query_start[1:])

        owner = np.repeat(np.arange(len(seqs)), num_rows)  # [T]
        positions = np.arange(query_start[-1]) - np.repeat(query_start[:-1] - first, num_rows)
        tables = self._pad_tables(plan, first + num_rows)
        blocks = tables[owner, positions // self._block_size].astype(np.int64)
        slots = blocks * self._block_size + positions % self._block_size

        sampled = {id(seq) for seq in plan.sampled}
        is_sampled = np.array([id(seq) in sampled for seq in seqs], dtype=bool)
        return Batch(
            token_ids=self._to_device(_token_ids(plan)),
            positions=self._to_device(positions),
            slot_mapping=self._to_device(slots),
            block_tables=self._to_device(tables),
            seq_lens=self._to_device((first + num_rows).astype(np.int32)),
            query_start=self._to_device(query_start.astype(np.int32)),
            num_decodes=len(plan.decodes),
            logit_rows=self._to_device(_logit_rows(plan, query_start, is_sampled)),
            groups=self._group_decodes(len(plan.decodes), tables, first + num_rows),
        )

    def _group_decodes(
        self, num_decodes: int, tables: npt.NDArray[np.int32], seq_lens: npt.NDArray[np.int64]
    ) -> PrefixGroups | None:
        tables, seq_lens = tables[:num_decodes], seq_lens[:num_decodes]
        groups = find_groups(tables, seq_lens, self._block_size, self.policy)
        if not groups:
            return None
        return pack_groups(groups, num_decodes, self._block_size, self._kv.device)

    def _pad_tables(self, plan: StepPlan, seq_lens: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """[S, max_blocks] of the blocks that hold seq_lens tokens, padded with 0."""
        num_blocks = (-(-seq_lens // self._block_size)).tolist()
        shape = (plan.num_seqs, max(num_blocks))
        size = shape[0] * shape[1]
        if size > len(self._tables):
            self._tables = np.zeros(2 * size, dtype=np.int32)
        tables = self._tables[:size].reshape(shape)
        tables.fill(0)
        seqs = plan.decodes + [chunk.seq for chunk in plan.chunks]
        for row, seq, count in zip(tables, seqs, num_blocks, strict=True):
            row[:count] = seq.packed_table[:count]
        return tables

    def _to_device(self, array: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if not self._kv.is_cuda:
            return tensor
        # Pinned, so that the host goes on while it is copied; torch keeps it until then.
        return tensor.pin_memory().to(self._kv.device, non_blocking=True)


def _logit_rows(
    plan: StepPlan, query_start: npt.NDArray[np.int64], is_sampled: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Rows of the batch: of the sampled sequences, then the scored chunks' prompt_rows."""
    rows = query_start[1:][is_sampled] - 1
    if not plan.scored:
        return rows
    starts = dict(zip(plan.chunks, query_start[len(plan.decodes) :].tolist(), strict=False))
    of_prompts = [
        starts[chunk] - chunk.seq.num_computed_tokens + np.array(chunk.prompt_rows, dtype=np.int64)
        for chunk in plan.scored
    ]
    return np.concatenate([rows, *of_prompts])


def _token_ids(plan: StepPlan) -> npt.NDArray[np.int64]:
    token_ids = [seq.token_ids[seq.num_computed_tokens] for seq in plan.decodes]
    for chunk in plan.chunks:
        start = chunk.seq.num_computed_tokens
        token_ids += chunk.seq.token_ids[start : start + chunk.num_tokens]
    return np.array(token_ids, dtype=np.int64)
