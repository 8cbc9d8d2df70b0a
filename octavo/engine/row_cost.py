"""What a decode row adds to a step, in units of the step's fixed part: reading all weights once.

    step of rows that attend to L1, L2, .. tokens = 1 + sum (fixed + per_token * L)

A row multiplies with every weight, and attends to every token of its sequence. The balance of
either is how many times over it could do what the weights take while they are read.
"""

from dataclasses import dataclass

import torch

from octavo.checkpoint.config import ModelConfig
from octavo.engine.kv_cache import KVLayout
from octavo.engine.step_budget import num_layer_parameters


@dataclass(frozen=True, slots=True)
class RowCost:
    """Of one model on one device."""

    fixed: float
    per_token: float

    def of(self, num_tokens: int) -> float:
        """A row's that attends to so many tokens."""
        return self.fixed + self.per_token * num_tokens


@dataclass(frozen=True, slots=True)
class Balance:
    """Multiply-adds in the time of reading the weights, over the number of weights."""

    products: float
    attention: float


def row_cost(config: ModelConfig, device: torch.device, layout: KVLayout) -> RowCost:
    """By the size of the model's parts and the balance of the device."""
    weights = num_layer_parameters(config) + config.vocab_size * config.hidden_size
    pairs = 2 * config.num_layers * config.num_heads * config.head_dim  # of a token and a row
    balance = balance_of(device, layout)
    return RowCost(1 / balance.products, pairs / (weights * balance.attention))


def balance_of(device: torch.device, layout: KVLayout) -> Balance:
    """CPU: measured on one core (bench/LOG.md), cautiously rounded: matrix tiles and pairs on
    Emerald Rapids, float32 by AVX-512 on Zen 5, everything by AVX2 on Zen 3. GPU: an estimate.
    """
    if device.type == "cuda":
        return Balance(products=100.0, attention=20.0)
    from octavo.kernels.cpu.amx import HAS_AMX_BF16
    from octavo.kernels.cpu.float_panel import IS_WIDE
    from octavo.kernels.cpu.pair_dot import HAS_PAIRS

    if layout.quantization:
        return Balance(products=12.0 if IS_WIDE else 5.0, attention=2.5)
    if layout.torch_dtype == torch.bfloat16 and HAS_AMX_BF16:
        return Balance(products=60.0, attention=2.5)
    if layout.torch_dtype == torch.bfloat16 and HAS_PAIRS:
        return Balance(products=5.5, attention=2.5)
    return Balance(products=16.0 if IS_WIDE else 5.0, attention=2.5)
