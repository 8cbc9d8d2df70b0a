"""What the attention kernels share of a call: its tensors, checked, and what follows from them."""

import math
from dataclasses import dataclass
from typing import Self

import torch
import triton

from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.launch import needs_upcast
from octavo.kernels.gpu.tiles import Tile

LOG2_E = math.log2(math.e)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Queries over paged KV, shapes as in reference.py; the last dimension of query and KV is
    contiguous, all other strides are free."""

    query: torch.Tensor  # [rows, num_heads, head_dim]
    kv_layer: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    scale: float
    sliding_window: int = 0

    def check(self) -> None:
        """What a kernel relies on, before it reads."""
        query, kv_layer, block_tables = self.query, self.kv_layer, self.block_tables
        num_heads, head_dim = query.shape[1:]
        assert query.dtype in DTYPES, query.dtype
        assert kv_layer.dtype in (query.dtype, FP8), (query.dtype, kv_layer.dtype)
        assert kv_layer.shape[1] == 2 and kv_layer.shape[4] == head_dim, (
            kv_layer.shape,
            query.shape,
        )
        assert num_heads % self.num_kv_heads == 0, (num_heads, self.num_kv_heads)
        assert head_dim <= MAX_HEAD_DIM, head_dim
        assert query.stride(2) == 1 and kv_layer.stride(4) == 1, (query.stride(), kv_layer.stride())
        assert block_tables.dtype == torch.int32 and block_tables.stride(1) == 1
        assert block_tables.shape[0] == self.seq_lens.shape[0], block_tables.shape
        assert self.seq_lens.dtype == torch.int32 and self.seq_lens.is_contiguous()
        assert self.scale > 0, self.scale

    @property
    def num_seqs(self) -> int:
        return self.block_tables.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self.kv_layer.shape[2]

    @property
    def block_size(self) -> int:
        return self.kv_layer.shape[3]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.query.shape[1] // self.num_kv_heads

    @property
    def head_dim_pad(self) -> int:
        return int(triton.next_power_of_2(self.query.shape[2]))

    @property
    def max_tokens(self) -> int:
        """Bound of every length by the table's width: asking for the lengths would stop the
        stream, and a captured graph may not depend on them."""
        return self.block_tables.shape[1] * self.block_size

    def block_m(self, tile: Tile) -> int:
        """Rows of a tile, those of one group at least."""
        return max(tile.block_m, int(triton.next_power_of_2(self.group)))

    def arguments(self) -> dict[str, torch.Tensor | int | float]:
        """What every kernel is given under the same names."""
        return {
            "query_ptr": self.query,
            "kv_ptr": self.kv_layer,
            "block_tables_ptr": self.block_tables,
            "scale_log2": self.scale * LOG2_E,
            "query_stride_row": self.query.stride(0),
            "query_stride_head": self.query.stride(1),
            "kv_stride_block": self.kv_layer.stride(0),
            "kv_stride_value": self.kv_layer.stride(1),
            "kv_stride_head": self.kv_layer.stride(2),
            "kv_stride_slot": self.kv_layer.stride(3),
            "table_stride": self.block_tables.stride(0),
        }

    def constants(self, tile: Tile) -> dict[str, int | bool]:
        return {
            "GROUP": self.group,
            "HEAD_DIM": self.query.shape[2],
            "HEAD_DIM_PAD": self.head_dim_pad,
            "BLOCK_SIZE": self.block_size,
            "BLOCK_M": self.block_m(tile),
            "BLOCK_N": tile.block_n,
            "UPCAST": needs_upcast(self.query.dtype),
        }


@dataclass(frozen=True, slots=True)
class Partials:
    """Results of parts of a sequence, weighed and added by a merge."""

    out: torch.Tensor  # float32 [S, num_heads, num_slots, head_dim]
    lse: torch.Tensor  # float32 [S, num_heads, num_slots], log-sum-exps in base 2

    @classmethod
    def empty(cls, call: PagedAttention, num_slots: int) -> Self:
        num_seqs, num_heads, head_dim = call.query.shape
        rows = (num_seqs, num_heads, num_slots)
        device = call.query.device
        return cls(
            torch.empty((*rows, head_dim), dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )
