"""How many tokens one step may compute, where nobody said.

A step should stay near a second: a decode row waits for the whole step it shares with a chunk, and
a worker that makes no step for five seconds counts as stuck.
"""

import torch

from octavo.checkpoint.config import ModelConfig

GPU_TOKENS = 8192
MAX_CPU_TOKENS = 512
MIN_CPU_TOKENS = 32
# About a second of one core, with AVX-512 and without.
WIDE_CPU_STEP_FLOP = 1.2e11
CPU_STEP_FLOP = 6e10


def default_step_tokens(config: ModelConfig, device: torch.device) -> int:
    """8192 on a GPU; on a CPU 256 or 512 for a model of 135M parameters, fewer for larger ones."""
    if device.type != "cpu":
        return GPU_TOKENS
    is_wide = torch.cpu.get_capabilities().get("avx512_f", False)
    flop = WIDE_CPU_STEP_FLOP if is_wide else CPU_STEP_FLOP
    tokens = int(flop / (2 * num_layer_parameters(config))) // MIN_CPU_TOKENS * MIN_CPU_TOKENS
    return max(MIN_CPU_TOKENS, min(MAX_CPU_TOKENS, tokens))


def num_layer_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied with, the embedding and the head left out."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp)
