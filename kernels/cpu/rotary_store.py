"""From a layer's projection to its attention: head norms, then rotation and store in one pass."""

import torch

from octavo.kernels.cpu.norm import rms_norm
from octavo.kernels.cpu.rotary import NUM_ARGS, rotary_args, rotate_token, tokens_at_once
from octavo.kernels.cpu.store import store_args, store_token
from octavo.kernels.cpu.team import kernel_per_format, run


@kernel_per_format
def _rotary_store(format):
    def rotary_store(args, first, last):
        """args: of rotary.py, then of store.py."""
        for t in range(first, last):
            rotate_token(format, args, t)
            store_token(args + 8 * NUM_ARGS, t)

    return rotary_store


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
    """As `reference.rotary_store_kv`; queries and keys are rotated in place."""
    if norms is not None:
        query, key = rms_norm(query, norms[0], eps), rms_norm(key, norms[1], eps)
    args = (
        *rotary_args(query, key, cos, sin),
        *store_args(key, value, kv_layer, slot_mapping),
    )
    run(_rotary_store(query.dtype), args, len(query), tokens_at_once(query))
    return query
