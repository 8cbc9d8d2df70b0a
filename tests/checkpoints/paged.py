"""Runs a `DecoderModel` by hand: block tables over a scattered pool, without an engine.

The pool starts full of NaN and its blocks are handed out in a shuffled order: a kernel that reads a
slot it should not, or takes a table for contiguous, shows in every logit.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import torch

from octavo.engine.batch import Batch
from octavo.engine.models.decoder import DecoderModel
from octavo.kernels import reference
from octavo.kernels.select import Kernels


def reference_kernels() -> Kernels:
    """kernels/reference.py as a model takes it."""

    def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> object:
        return lambda x: torch.nn.functional.linear(x, weight, bias)

    names = [name for name in dir(Kernels) if not name.startswith("_")]
    operations = {name: getattr(reference, name, pack_linear) for name in names}
    return cast(Kernels, SimpleNamespace(**operations))


@dataclass
class PagedSequence:
    num_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)


class PagedPool:
    """KV blocks for a few sequences of one model."""

    def __init__(
        self,
        model: DecoderModel,
        dtype: torch.dtype = torch.float32,
        num_blocks: int = 96,
        block_size: int = 16,
    ) -> None:
        config = model.config
        shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
        self.model = model
        self.kv = torch.full(shape, float("nan"), dtype=dtype)
        self._block_size = block_size
        self._free = list(range(num_blocks))
        random.Random(0).shuffle(self._free)

    def step(
        self,
        work: Sequence[tuple[PagedSequence, Sequence[int]]],
        num_decodes: int = 0,
        logit_rows: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """One forward pass: each sequence's next tokens; logits of every row unless told less."""
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for sequence, token_ids in work:
            for _ in token_ids:
                positions.append(sequence.num_tokens)
                slots.append(self._next_slot(sequence))
            starts.append(len(positions))
        longest = max(len(sequence.block_ids) for sequence, _ in work)
        tables = [
            sequence.block_ids + [0] * (longest - len(sequence.block_ids)) for sequence, _ in work
        ]
        rows = range(len(positions)) if logit_rows is None else logit_rows
        batch = Batch(
            token_ids=torch.tensor([token for _, tokens in work for token in tokens]),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            seq_lens=torch.tensor([sequence.num_tokens for sequence, _ in work], dtype=torch.int32),
            query_start=torch.tensor(starts, dtype=torch.int32),
            num_decodes=num_decodes,
            logit_rows=torch.tensor(list(rows), dtype=torch.int64),
        )
        return self.model.forward(batch, self.kv)

    def _next_slot(self, sequence: PagedSequence) -> int:
        offset = sequence.num_tokens % self._block_size
        if offset == 0:
            sequence.block_ids.append(self._free.pop())
        sequence.num_tokens += 1
        return sequence.block_ids[-1] * self._block_size + offset


def paged_logits(
    model: DecoderModel,
    token_ids: Sequence[int],
    chunks: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Logits after every token, [len(token_ids), vocab_size]: chunks, then the rest at once.

    A later chunk finds the earlier ones in the cache, as it would a cached prefix; a chunk of one
    token past the first runs as a decode row.
    """
    pool, sequence, logits = PagedPool(model, dtype), PagedSequence(), []
    sizes = [*chunks, len(token_ids) - sum(chunks)]
    for size in sizes:
        if size > 0:
            start = sequence.num_tokens
            num_decodes = 1 if size == 1 and start > 0 else 0
            logits.append(
                pool.step([(sequence, token_ids[start : start + size])], num_decodes=num_decodes)
            )
    return torch.cat(logits)
