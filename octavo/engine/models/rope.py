"""The angles of rotary position embedding, in float32, by the formulas of `transformers`.

    inv_freq [R]  from the config, once (R = head_dim / 2)
    cos, sin [T, R]  from the step's positions, once a step for all layers

Angles are computed and not looked up: 2R sines a token are nothing beside a layer, and no table
bounds the position.

The dynamic type stretches its base with the length of the sequence. Length here is the tokens in
the cache once the step is done, so a prompt computed in one step, and each token decoded after it,
get what `transformers` gives them at batch 1. Past max_position_embeddings the keys of an earlier
step keep the base of the length they were computed at, there as here: such KV is no function of the
tokens before it alone, and `RopeConfig.is_length_dependent` says so to whoever would share it.
"""

import math

import torch

from octavo.checkpoint.config import RopeConfig
from octavo.engine.batch import Batch


class Rotary:
    """cos and sin of a step for one model."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._config = config
        self._head_dim = head_dim
        inv_freq, self._scaling = inverse_frequencies(config, head_dim)
        self._inv_freq = inv_freq.to(device)
        self._exponents = _exponents(head_dim).to(device)

    @property
    def num_angles(self) -> int:
        """R."""
        return len(self._inv_freq)

    def cos_sin(
        self, batch: Batch, out: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [T, R] float32, attention scaling (yarn) included; written to `out` if given."""
        positions = batch.positions.to(torch.float32)[:, None]
        angles = positions * (
            self._dynamic_inv_freq(batch) if self._config.is_length_dependent else self._inv_freq
        )
        cos, sin = out or (torch.empty_like(angles), torch.empty_like(angles))
        torch.cos(angles, out=cos)
        torch.sin(angles, out=sin)
        if self._scaling != 1.0:
            cos.mul_(self._scaling)
            sin.mul_(self._scaling)
        return cos, sin

    def _dynamic_inv_freq(self, batch: Batch) -> torch.Tensor:
        """[T, R], each row by the length of its own sequence."""
        config, dim = self._config, self._head_dim
        num_rows = batch.query_start.diff().long()
        lens = batch.seq_lens.repeat_interleave(num_rows, output_size=len(batch.positions))
        limit = config.original_max_position_embeddings
        stretch = config.factor * lens.clamp(min=limit).float() / limit - (config.factor - 1)
        base = config.theta * stretch ** (dim / (dim - 2))  # [T]
        stretched = 1.0 / (base[:, None] ** self._exponents)
        # Within the context the frequencies are the plain ones to the last bit.
        return torch.where((lens > limit)[:, None], stretched, self._inv_freq)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """(inv_freq [head_dim / 2] float32, what cos and sin are multiplied by)."""
    plain = 1.0 / (config.theta ** _exponents(head_dim))
    match config.rope_type:
        case "default" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / config.factor, 1.0
        case "llama3":
            return _llama3(plain, config), 1.0
        case "yarn":
            return _yarn(config, head_dim), _yarn_attention_factor(config)
    raise ValueError(f"no frequencies for rope_type {config.rope_type!r}")


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim


def _llama3(plain: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Long waves are slowed by factor, short ones kept, those between blended."""
    context = config.original_max_position_embeddings
    low, high = config.low_freq_factor, config.high_freq_factor
    wave = 2 * math.pi / plain
    scaled = torch.where(wave > context / low, plain / config.factor, plain)
    smooth = (context / wave - low) / (high - low)
    blended = (1 - smooth) * scaled / config.factor + smooth * scaled
    is_between = (wave >= context / high) & (wave <= context / low)
    return torch.where(is_between, blended, scaled)


def _yarn(config: RopeConfig, dim: int) -> torch.Tensor:
    """Dimensions that turn often in the trained context are kept, the others interpolated."""
    powers = config.theta ** _exponents(dim)
    low, high = _yarn_range(config, dim)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (config.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _yarn_range(config: RopeConfig, dim: int) -> tuple[float, float]:
    """Dimensions that turn beta_fast and beta_slow times in the trained context."""

    def dimension(num_rotations: float) -> float:
        turns = config.original_max_position_embeddings / (num_rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_attention_factor(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * weight * math.log(config.factor) + 1.0

    if config.mscale and config.mscale_all_dim:
        return mscale(config.mscale) / mscale(config.mscale_all_dim)
    return mscale(1.0)
