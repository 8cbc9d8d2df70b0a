"""What the attention launchers assume of their tensors, checked before a kernel reads them."""

import math

import torch

LOG2_E = math.log2(math.e)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256


def check_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> None:
    """Shapes as in reference.py; the last dimension of query and KV is contiguous, all other
    strides are free."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = kv_layer.shape[2]
    assert query.dtype in DTYPES and kv_layer.dtype == query.dtype, (query.dtype, kv_layer.dtype)
    assert kv_layer.shape[1] == 2 and kv_layer.shape[4] == head_dim, (kv_layer.shape, query.shape)
    assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
    assert head_dim <= MAX_HEAD_DIM, head_dim
    assert query.stride(2) == 1 and kv_layer.stride(4) == 1, (query.stride(), kv_layer.stride())
    assert block_tables.dtype == torch.int32 and block_tables.stride(1) == 1
    assert block_tables.shape[0] == seq_lens.shape[0], (block_tables.shape, seq_lens.shape)
    assert seq_lens.dtype == torch.int32 and seq_lens.is_contiguous()
    assert scale > 0, scale
