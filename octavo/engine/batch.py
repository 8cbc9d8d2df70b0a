"""The tensors of one model step: decode rows first, prefill chunks after them, flat."""

from dataclasses import dataclass

import torch

from octavo.engine.adapter_rows import AdapterRows
from octavo.kernels.prefix_groups import PrefixGroups


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences; sequence i owns rows query_start[i] : query_start[i + 1]."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slot_mapping: torch.Tensor  # [T] int64, block_id * block_size + offset
    block_tables: torch.Tensor  # [S, max_blocks] int32, rows padded with 0
    seq_lens: torch.Tensor  # [S] int32, tokens in the cache once this step has stored its own
    query_start: torch.Tensor  # [S + 1] int32
    num_decodes: int  # the first num_decodes sequences have one row each
    logit_rows: torch.Tensor  # [num_sampled] int64, rows whose logits are wanted
    # Decode rows that begin with the same blocks, where reading those once pays; else None.
    groups: PrefixGroups | None = None
    adapters: tuple[AdapterRows, ...] = ()  # rows that are more than the model's own
