"""Brings each head's keys and values into the range of an fp8 cache: powers of two in the weights.

    k = W_k x, W_k * 2^e;  q = W_q x, W_q / 2^e    scores are what they were, to the last bit
    v = W_v x, W_v * 2^e;  o = W_o a, W_o / 2^e    and so are outputs

So a cache needs no scales beside it and kernels no multiplications. The exponents come from the
weights alone, in float64: every worker of a checkpoint finds the same ones, and their blocks can be
exchanged. An input that left a norm has elements of about 1, so a row's output has a standard
deviation of about |row * norm weight|; six of them and the bias are brought to TARGET.
"""

import math
from dataclasses import dataclass

import torch

from octavo.checkpoint.config import ModelConfig

# Of the 448 that fp8 (e4m3) reaches: room for outliers four times as large.
TARGET = 112.0
DEVIATIONS = 6.0
MAX_EXPONENT = 8  # far from where half precision would run out of range


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One layer's, as loaded; scaled in place."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, H]
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    o: torch.Tensor  # [H, num_heads * head_dim]


def scale_for_fp8(weights: AttentionWeights, config: ModelConfig) -> None:
    """Change a layer's weights so that its keys and values fit an fp8 cache."""
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    sizes = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
    query, key, value = torch.split(weights.qkv, sizes)
    bias = weights.qkv_bias
    biases = (None, None, None) if bias is None else torch.split(bias, sizes)
    group = num_heads // num_kv_heads
    if weights.head_norms is None:
        exponents = _exponents(_greatest(key, biases[1], weights.input_norm, head_dim))
        _scale_rows(key, biases[1], exponents, head_dim)
        _scale_rows(query, biases[0], -exponents.repeat_interleave(group), head_dim)
    else:
        # A norm undoes what its input is scaled by: its own weight is what counts.
        query_norm, key_norm = weights.head_norms
        exponent = _exponents(DEVIATIONS * key_norm.double().abs().max()[None])
        key_norm.copy_(torch.ldexp(key_norm, exponent))
        query_norm.copy_(torch.ldexp(query_norm, -exponent))
    exponents = _exponents(_greatest(value, biases[2], weights.input_norm, head_dim))
    _scale_rows(value, biases[2], exponents, head_dim)
    columns = -exponents.repeat_interleave(group).repeat_interleave(head_dim)
    weights.o.copy_(torch.ldexp(weights.o, columns))


def _greatest(
    rows: torch.Tensor, bias: torch.Tensor | None, input_norm: torch.Tensor, head_dim: int
) -> torch.Tensor:
    """What a head's numbers about reach, [num_kv_heads] float64."""
    weighted = rows.double() * input_norm.double()
    greatest: torch.Tensor = DEVIATIONS * torch.linalg.vector_norm(weighted, dim=1)
    if bias is not None:
        greatest += bias.double().abs()
    return greatest.view(-1, head_dim).amax(dim=1)


def _exponents(greatest: torch.Tensor) -> torch.Tensor:
    """Powers of two that bring these to TARGET or just below, int32."""
    exponents = [math.floor(math.log2(TARGET / x)) if x > 0 else 0 for x in greatest.tolist()]
    return torch.tensor(exponents, dtype=torch.int32, device=greatest.device).clamp(
        -MAX_EXPONENT, MAX_EXPONENT
    )


def _scale_rows(
    rows: torch.Tensor, bias: torch.Tensor | None, exponents: torch.Tensor, head_dim: int
) -> None:
    """Multiply the rows of head i, and their biases, by 2^exponents[i]."""
    of_rows = exponents.repeat_interleave(head_dim)
    rows.copy_(torch.ldexp(rows, of_rows[:, None]))
    if bias is not None:
        bias.copy_(torch.ldexp(bias, of_rows))
