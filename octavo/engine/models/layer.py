"""The weights of one decoder layer."""

from dataclasses import dataclass

import torch

from octavo.kernels.select import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; q, k and v are one product, gate and up another."""

    input_norm: torch.Tensor  # [H]
    qkv: Linear  # H -> (num_heads + 2 * num_kv_heads) * head_dim
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # of q and k, [head_dim] each; Qwen3
    o: Linear  # num_heads * head_dim -> H
    post_attention_norm: torch.Tensor  # [H]
    gate_up: Linear  # H -> 2 * intermediate_size
    down: Linear  # intermediate_size -> H
