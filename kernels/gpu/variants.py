"""Every kernel variant that a launcher can start, as launches over tensors that have no memory.

What changes machine code: the kernel, head_dim, dtype, the cache's dtype, whether a tile of KV lies
within one block (block sizes of 64 and more) or is gathered from several, whether there is a
sliding window, whether the sequence is split or begins with blocks of a group, and the group size
as far as it sets the tile's rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from octavo.kernels.gpu.decode_attention import decode_splits, plan_decode_attention
from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.paged_attention import PagedAttention
from octavo.kernels.gpu.prefill_attention import plan_prefill_attention
from octavo.kernels.gpu.rms_norm import plan_rms_norm
from octavo.kernels.gpu.rotary_store import plan_rotary_store
from octavo.kernels.gpu.shared_attention import plan_grouped_decode_attention
from octavo.kernels.gpu.silu_mul import plan_silu_mul
from octavo.kernels.gpu.tiles import Arch, Gpu, decode_tile, prefill_tile
from octavo.kernels.prefix_groups import PrefixGroups

HEAD_DIMS = (64, 80, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NUM_KV_HEADS, NUM_LAYERS, NUM_SEQS, NUM_TOKENS = 8, 32, 4, 512
NUM_CORES = 132


class Paging(NamedTuple):
    """One way of calling attention."""

    block_size: int
    group: int
    sliding_window: int
    max_tokens: int  # 64: too short for splits


PAGINGS = (
    Paging(block_size=16, group=4, sliding_window=0, max_tokens=65_536),
    Paging(block_size=128, group=7, sliding_window=4096, max_tokens=65_536),
    Paging(block_size=16, group=8, sliding_window=0, max_tokens=64),
    Paging(block_size=8, group=1, sliding_window=512, max_tokens=64),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A launch and what tells it from the others."""

    kernel: str
    dtype: str
    shape: str
    launch: Launch


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _variant(launch: Launch, dtype: str, shape: str) -> Variant:
    kernel = launch.kernel.__name__.removeprefix("_").removesuffix("_kernel")
    return Variant(kernel, dtype, shape, launch)


def _dtype_name(dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{name} over fp8" if kv_dtype == FP8 else name


def variants(arch: Arch) -> list[Variant]:
    """All of them, in a fixed order, planned for arch. sm_89 is sm_80 with fp8, so only its fp8
    variants are new; AMD's fp8 is another format."""
    gpu = Gpu(arch, NUM_CORES)
    found: list[Variant] = []
    for dtype in DTYPES if arch != "sm_89" else ():
        for head_dim in HEAD_DIMS:
            found.extend(_attention(gpu, dtype, head_dim, dtype))
            found.extend(_heads(dtype, head_dim, dtype))
        found.extend(_rows(dtype))
    for head_dim in HEAD_DIMS if arch in ("sm_89", "sm_90") else ():
        found.extend(_attention(gpu, torch.bfloat16, head_dim, FP8))
        found.extend(_heads(torch.bfloat16, head_dim, FP8))
    unique = {(v.kernel, v.dtype, str(v.launch.constants)): v for v in reversed(found)}
    return list(reversed(unique.values()))


def _attention(
    gpu: Gpu, dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype
) -> Iterator[Variant]:
    for paging in PAGINGS:
        call = _call(dtype, head_dim, kv_dtype, paging)
        name = _dtype_name(dtype, kv_dtype)
        shape = f"D {head_dim}, group {paging.group}, block {paging.block_size}"
        shape += f", window {paging.sliding_window}"
        merge_shape = f"D {head_dim}, window {paging.sliding_window}"
        tile = decode_tile(gpu, call.head_dim_pad, dtype)
        launches = plan_decode_attention(call.query, call, tile, decode_splits(call, gpu))
        split = ", split" if len(launches) == 2 else ""
        yield _variant(launches[0], name, shape + split)
        for merge in launches[1:]:
            yield _variant(merge, _dtype_name(dtype, dtype), merge_shape)
        for num_members in (2, 64) if paging.sliding_window == 0 else ():
            groups = _groups(num_members, call.block_tables.shape[1])
            shared, own, merge = plan_grouped_decode_attention(call.query, call, groups, gpu)
            yield _variant(shared, name, f"{shape}, {num_members} members")
            yield _variant(own, name, f"{shape}, shared")
            yield _variant(merge, _dtype_name(dtype, dtype), merge_shape)
        query = _tensor(NUM_TOKENS, *call.query.shape[1:], dtype=dtype)
        query_start = _tensor(NUM_SEQS + 1, dtype=torch.int32)
        tile = prefill_tile(gpu, call.head_dim_pad, dtype)
        prefill = plan_prefill_attention(query, replace(call, query=query), query_start, tile)
        yield _variant(prefill, name, shape)


def _call(
    dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype, paging: Paging
) -> PagedAttention:
    """One decode step over one layer of a pool."""
    block_size, group, sliding_window, max_tokens = paging
    pool = _tensor(64, NUM_LAYERS, 2, NUM_KV_HEADS, block_size, head_dim, dtype=kv_dtype)
    return PagedAttention(
        query=_tensor(NUM_SEQS, NUM_KV_HEADS * group, head_dim, dtype=dtype),
        kv_layer=pool[:, 1],
        block_tables=_tensor(NUM_SEQS, max_tokens // block_size, dtype=torch.int32),
        seq_lens=_tensor(NUM_SEQS, dtype=torch.int32),
        scale=1.0,
        sliding_window=sliding_window,
    )


def _groups(num_members: int, max_blocks: int) -> PrefixGroups:
    """One group."""
    return PrefixGroups(
        members=_tensor(num_members, dtype=torch.int32),
        group_start=_tensor(2, dtype=torch.int32),
        blocks=_tensor(1, 2, dtype=torch.int32),
        levels=_tensor(1, dtype=torch.int32),
        shared_lens=_tensor(NUM_SEQS, dtype=torch.int32),
        num_levels=1,
        max_members=num_members,
        max_blocks=max_blocks,
    )


def _heads(dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype) -> Iterator[Variant]:
    """Kernels that work on the heads of one token."""
    kv_layer = _tensor(64, NUM_LAYERS, 2, NUM_KV_HEADS, 16, head_dim, dtype=kv_dtype)[:, 1]
    fused = _tensor(NUM_TOKENS, 6 * NUM_KV_HEADS, head_dim, dtype=dtype)
    query, key, value = fused.split([4 * NUM_KV_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
    slots = _tensor(NUM_TOKENS, dtype=torch.int64)
    cos = _tensor(NUM_TOKENS, head_dim // 2, dtype=torch.float32)
    weight = _tensor(head_dim, dtype=dtype)
    name = _dtype_name(dtype, kv_dtype)
    for norms in (None, (weight, weight)):
        launch = plan_rotary_store(query, key, value, cos, cos, kv_layer, slots, norms, 1e-6)
        yield _variant(launch, name, f"D {head_dim}" + (", norm" if norms else ""))


def _rows(dtype: torch.dtype) -> Iterator[Variant]:
    """Kernels that work on the hidden state of one token."""
    name = _dtype_name(dtype, dtype)
    for hidden_size in (576, 4096, 16_384):
        x = _tensor(NUM_TOKENS, 1, hidden_size, dtype=dtype)
        weight = _tensor(hidden_size, dtype=dtype)
        yield _variant(plan_rms_norm(x, x, None, weight, 1e-6), name, f"N {hidden_size}")
        yield _variant(plan_rms_norm(x, x, x, weight, 1e-6), name, f"N {hidden_size}, add")
    for intermediate_size in (1536, 14_336):
        out = _tensor(NUM_TOKENS, intermediate_size, dtype=dtype)
        gate_up = _tensor(NUM_TOKENS, 2 * intermediate_size, dtype=dtype)
        yield _variant(plan_silu_mul(out, gate_up), name, f"N {intermediate_size}")
