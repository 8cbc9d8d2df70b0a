"""The same attention by others, where they can be imported: what Octavo's is set beside.

SDPA and FlashAttention get contiguous K and V for nothing, which a server would have to gather;
FlashInfer reads the very blocks that Octavo reads.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from cases import Case, Run
from torch.nn import functional

from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.paged_attention import PagedAttention

WORKSPACE_BYTES = 256 * 2**20


def others(case: Case) -> dict[str, Callable[[], Run]]:
    """Builders by name: each makes ready what it needs and returns what is timed."""
    call = case.call
    if call is None:
        return {}
    starts = case.query_start
    found: dict[str, Callable[[], Run]] = {}
    if importlib.util.find_spec("flashinfer"):
        found["FlashInfer"] = lambda: _flashinfer(call, starts)
    if call.kv_layer.dtype == FP8:
        return found  # the others would need a copy in another dtype
    found["SDPA"] = lambda: _sdpa(call)
    if importlib.util.find_spec("flash_attn"):
        found["FlashAttention"] = lambda: _flash_attention(call)
    return found


def _contiguous(call: PagedAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [S, num_kv_heads, L, head_dim]; all sequences are equally long."""
    blocks = call.kv_layer[call.block_tables.long()]  # [S, n, 2, heads, block, head_dim]
    key, value = blocks.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    num_tokens = int(call.seq_lens[0])
    return key[:, :, :num_tokens].contiguous(), value[:, :, :num_tokens].contiguous()


def _queries(call: PagedAttention) -> torch.Tensor:
    """[S, num_heads, rows, head_dim]."""
    rows = call.query.view(call.num_seqs, -1, *call.query.shape[1:])
    return rows.transpose(1, 2).contiguous()


def _sdpa(call: PagedAttention) -> Run:
    key, value = _contiguous(call)
    query = _queries(call)
    num_rows, num_tokens = query.shape[2], key.shape[2]
    if num_rows not in (1, num_tokens):
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(num_rows, num_tokens)
        return lambda: functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=call.scale, enable_gqa=True
        )
    return lambda: functional.scaled_dot_product_attention(
        query, key, value, is_causal=num_rows > 1, scale=call.scale, enable_gqa=True
    )


def _flash_attention(call: PagedAttention) -> Run:
    flash_attn: Any = importlib.import_module("flash_attn")
    key, value = (x.transpose(1, 2).contiguous() for x in _contiguous(call))
    query = _queries(call).transpose(1, 2).contiguous()
    if query.shape[1] == 1:
        return lambda: flash_attn.flash_attn_with_kvcache(
            query, key, value, cache_seqlens=call.seq_lens, softmax_scale=call.scale
        )
    return lambda: flash_attn.flash_attn_func(
        query, key, value, softmax_scale=call.scale, causal=True
    )


def _flashinfer(call: PagedAttention, starts: torch.Tensor | None) -> Run:
    flashinfer: Any = importlib.import_module("flashinfer")
    device, width = call.query.device, call.block_tables.shape[1]
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    page_starts = torch.arange(call.num_seqs + 1, dtype=torch.int32, device=device) * width
    last = (call.seq_lens - 1) % call.block_size + 1
    pages = (page_starts, call.block_tables.flatten(), last)
    heads = (call.query.shape[1], call.num_kv_heads, call.query.shape[2], call.block_size)
    dtypes = {"q_data_type": call.query.dtype, "kv_data_type": call.kv_layer.dtype}
    if starts is None:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_tensor_cores=call.group >= 4
        )
        wrapper.plan(*pages, *heads, sm_scale=call.scale, **dtypes)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        wrapper.plan(starts, *pages, *heads, causal=True, sm_scale=call.scale, **dtypes)
    return lambda: wrapper.run(call.query, call.kv_layer)
