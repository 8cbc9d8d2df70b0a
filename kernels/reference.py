"""Plain PyTorch versions of every kernel: the specification that Triton and CPU code are tested
against. Written for clearness; arithmetic in float32 (float64 in, float64 through).

Shapes (T tokens of S sequences, G = num_heads / num_kv_heads):
    kv_layer      [num_blocks, 2, num_kv_heads, block_size, head_dim], any strides: one layer's view
                  of the pool `kv[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`
    block_tables  [S, max_blocks] int32
    seq_lens      [S] int32, tokens in the cache, the step's own included
    query_start   [S + 1] int32
"""

import torch

from octavo.kernels.prefix_groups import PrefixGroups


def embed(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of weight [vocab_size, H] by token_ids [T] int64. Returns [T, H]."""
    return torch.nn.functional.embedding(token_ids, weight)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write key[t] and value[t] into slot slot_mapping[t]; negative slots are skipped.

    key, value: [T, num_kv_heads, head_dim]; slot_mapping: [T] int64. A float8_e4m3fn cache takes
    what its numbers can hold: beyond +-448 they end.
    """
    if kv_layer.dtype == torch.float8_e4m3fn:
        most = torch.finfo(torch.float8_e4m3fn).max
        key = key.clamp(-most, most).to(torch.float8_e4m3fn)
        value = value.clamp(-most, most).to(torch.float8_e4m3fn)
    block_size = kv_layer.shape[3]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_ids, offsets = slots // block_size, slots % block_size
    kv_layer[block_ids, 0, :, offsets] = key[kept]
    kv_layer[block_ids, 1, :, offsets] = value[kept]


def decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """Attention of each sequence's newest token over its paged KV (PagedAttention, SOSP'23, 4.1).

    query: [S, num_heads, head_dim]; sliding_window: how many newest tokens are seen, 0 for all.
    Returns [S, num_heads, head_dim] in query's dtype.
    """
    query_start = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=query.device)
    return prefill_attention(
        query, kv_layer, block_tables, seq_lens, query_start, scale, sliding_window
    )


def grouped_decode_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    groups: PrefixGroups,
    scale: float,
) -> torch.Tensor:
    """decode_attention whose shared prefixes are read once (Hydragen, arXiv 2402.05099).

    Each group's blocks are one dense product with all its members' query heads, each sequence's
    remaining tokens one of its own; parts are weighed by their share of the sum of exponents.
    Returns [S, num_heads, head_dim] in query's dtype.
    """
    block_size = kv_layer.shape[3]
    wide = query.to(torch.promote_types(query.dtype, torch.float32)) * scale
    out = torch.zeros_like(wide)  # [S, num_heads, head_dim]
    log_sum = torch.full_like(wide[..., :1], float("-inf"))  # of exponents, [S, num_heads, 1]

    def add_part(rows: torch.Tensor, table: torch.Tensor, num_tokens: int) -> None:
        """Attention of sequences `rows` over the first num_tokens of a table, merged into out."""
        key, value = gather_kv(kv_layer, table, num_tokens)  # [num_kv_heads, L, head_dim]
        by_head = wide[rows].unflatten(1, (len(key), -1)).transpose(0, 1)  # heads of one KV head
        dense = by_head.flatten(1, 2)  # [num_kv_heads, rows * group, head_dim]
        scores = dense @ key.to(wide.dtype).transpose(1, 2)
        shape = (len(key), len(rows), -1)
        part = (scores.softmax(-1) @ value.to(wide.dtype)).unflatten(1, shape[1:])
        part_sum = scores.logsumexp(-1, keepdim=True).unflatten(1, shape[1:])
        part, part_sum = (x.transpose(0, 1).flatten(1, 2) for x in (part, part_sum))
        merged = torch.logaddexp(log_sum[rows], part_sum)
        before, added = (log_sum[rows] - merged).exp(), (part_sum - merged).exp()
        out[rows] = out[rows] * before + part * added
        log_sum[rows] = merged

    for g, (first, end) in enumerate(groups.blocks.tolist()):
        rows = groups.members[groups.group_start[g] : groups.group_start[g + 1]].long()
        add_part(rows, block_tables[rows[0], first:end], (end - first) * block_size)
    for i, shared in enumerate(groups.shared_lens.tolist()):
        own = block_tables[i, shared // block_size :]
        add_part(torch.tensor([i], device=query.device), own, int(seq_lens[i]) - shared)
    return out.to(query.dtype)


def prefill_attention(
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    sliding_window: int = 0,
) -> torch.Tensor:
    """Causal attention of prompt chunks over paged KV; the chunks' own KV is stored already.

    query: [T, num_heads, head_dim]. Row j of sequence i stands at position
    seq_lens[i] - num_rows(i) + j and sees positions p <= its own (and > own - sliding_window).
    Returns [T, num_heads, head_dim] in query's dtype.
    """
    num_kv_heads = kv_layer.shape[2]
    group = query.shape[1] // num_kv_heads
    accumulate = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = torch.empty_like(query)
    for i in range(len(seq_lens)):
        start, end = int(query_start[i]), int(query_start[i + 1])
        if start == end:
            continue
        key, value = gather_kv(kv_layer, block_tables[i], int(seq_lens[i]))
        key = key.to(accumulate).repeat_interleave(group, dim=0)  # [num_heads, L, head_dim]
        value = value.to(accumulate).repeat_interleave(group, dim=0)
        rows = query[start:end].to(accumulate).transpose(0, 1)  # [num_heads, rows, head_dim]
        scores = rows @ key.transpose(1, 2) * scale
        seen = torch.arange(key.shape[1], device=query.device)
        own = torch.arange(int(seq_lens[i]) - (end - start), int(seq_lens[i]), device=query.device)
        mask = seen[None, :] <= own[:, None]
        if sliding_window > 0:
            mask &= seen[None, :] > own[:, None] - sliding_window
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        out[start:end] = (weights @ value).transpose(0, 1).to(query.dtype)
    return out


def gather_kv(
    kv_layer: torch.Tensor, block_table: torch.Tensor, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first num_tokens keys and values of one sequence, each [num_kv_heads, L, head_dim]."""
    block_size = kv_layer.shape[3]
    num_blocks = -(-num_tokens // block_size)
    blocks = kv_layer[block_table[:num_blocks].long()]  # [n, 2, num_kv_heads, block_size, head_dim]
    flat = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :num_tokens]
    return flat[0], flat[1]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; rounded before the weight, as
    `transformers` does. x: [..., N], weight: [N]."""
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual). x, residual: [T, N]; residual may be overwritten."""
    residual = x + residual
    return rms_norm(residual, weight, eps), residual


def rotary(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the leading 2R dimensions of every head in place, halves paired (NeoX style).

    query: [T, num_heads, head_dim]; key: [T, num_kv_heads, head_dim]; cos, sin: [T, R] float32.
    """
    half = cos.shape[1]
    for x in (query, key):
        wide = torch.promote_types(x.dtype, torch.float32)
        c, s = cos[:, None, :].to(wide), sin[:, None, :].to(wide)
        first, second = x[..., :half].to(wide), x[..., half : 2 * half].to(wide)
        # Both halves before either is written: in float32 they are views of x.
        rotated = (first * c - second * s, second * c + first * s)
        x[..., :half], x[..., half : 2 * half] = rotated[0].to(x.dtype), rotated[1].to(x.dtype)


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_layer: torch.Tensor,
    slot_mapping: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Everything between a layer's projection and its attention: rms_norm of each query and key
    head by `norms` (query's and key's [head_dim]) if given, rotary, store_kv.

    Returns the queries, which may lie in `query`'s memory; `key` may be overwritten.
    """
    if norms is not None:
        query, key = rms_norm(query, norms[0], eps), rms_norm(key, norms[1], eps)
    rotary(query, key, cos, sin)
    store_kv(key, value, kv_layer, slot_mapping)
    return query


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up: [T, 2N], gate first. Returns [T, N]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
