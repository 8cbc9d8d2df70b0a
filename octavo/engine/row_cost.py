"""What a decode row adds to a step, in units of the step's fixed part: reading all weights once.

    step of rows that attend to L1, L2, .. tokens = 1 + sum (fixed + per_token * L)

A row multiplies with every weight; `balance` such rows take as long as reading the weights. Of
attention, a multiply-add costs `ATTENTION` of those.
"""

from dataclasses import dataclass

import torch

from octavo.checkpoint.config import ModelConfig
from octavo.engine.kv_cache import KVLayout
from octavo.engine.step_budget import num_layer_parameters

ATTENTION = 4.0


@dataclass(frozen=True, slots=True)
class RowCost:
    """Of one model on one device."""

    fixed: float
    per_token: float

    def of(self, num_tokens: int) -> float:
        """A row's that attends to so many tokens."""
        return self.fixed + self.per_token * num_tokens


def row_cost(config: ModelConfig, device: torch.device, layout: KVLayout) -> RowCost:
    """By balance of the device."""
    weights = num_layer_parameters(config) + config.vocab_size * config.hidden_size
    per_token = 2 * config.num_layers * config.num_heads * config.head_dim
    fixed = 1 / balance(device, layout)
    return RowCost(fixed, fixed * ATTENTION * per_token / weights)


def balance(device: torch.device, layout: KVLayout) -> float:
    """Rows whose products take as long as reading the weights."""
    return 4.0
