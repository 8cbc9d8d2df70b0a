"""How a model turns positions into angles: the rope fields of config.json, old and new spelling.

rope_parameters {rope_type, rope_theta, factor, ...}             transformers 5
rope_scaling {rope_type or type, factor, ...} and rope_theta     before it
"""

from dataclasses import dataclass

from octavo.checkpoint.errors import CheckpointError, UnsupportedModel
from octavo.checkpoint.fields import Fields

DEFAULT_THETA = 10000.0
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One rope for all layers; fields that a type does not use keep their defaults."""

    rope_type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    # Context the model was trained with: llama3 and yarn; max_position_embeddings for dynamic.
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn; None: from factor and mscale
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float = 0.0  # yarn; 0: not given
    mscale_all_dim: float = 0.0  # yarn; 0: not given
    truncate: bool = True  # yarn

    @property
    def is_length_dependent(self) -> bool:
        """Whether the KV of a token depends on how long its sequence is (past the context)."""
        return self.rope_type == "dynamic"


def parse_rope(config: Fields, max_position_embeddings: int) -> RopeConfig:
    """The rope of config.json, with the defaults of `transformers`.

    Raises:
        UnsupportedModel: a rope type, or a rope per layer type, that Octavo does not compute.
        CheckpointError: a field of the type is missing or has the wrong type.
    """
    rope = config.nested("rope_scaling") or config.nested("rope_parameters")
    if rope is None:
        rope = Fields({}, f"{config.where}: rope_parameters")
    _refuse_unknown(rope, config)
    rope_type = rope.string("rope_type", rope.string("type", "default"))
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if theta <= 1.0:
        raise CheckpointError(f"{rope.where}: rope_theta must be above 1, got {theta}")
    if rope_type not in ROPE_TYPES:
        raise UnsupportedModel(
            f"{rope.where}: rope_type {rope_type!r} is not supported; "
            f"known: {', '.join(ROPE_TYPES)}"
        )
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "yarn":
        return _parse_yarn(rope, config, theta, max_position_embeddings)
    factor = _positive(rope, "factor")
    if rope_type == "llama3":
        return _parse_llama3(rope, config, theta, max_position_embeddings)
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_position_embeddings=max_position_embeddings,
    )


def _refuse_unknown(rope: Fields, config: Fields) -> None:
    for name, value in rope.values.items():
        if isinstance(value, dict):
            raise UnsupportedModel(f"{rope.where}: a rope of its own for {name} is not supported")
    for fields in (rope, config):
        partial = fields.number("partial_rotary_factor", 1.0)
        if partial != 1.0:
            raise UnsupportedModel(
                f"{fields.where}: partial_rotary_factor {partial} is not supported"
            )


def _parse_llama3(rope: Fields, config: Fields, theta: float, max_positions: int) -> RopeConfig:
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if low == high:
        raise CheckpointError(
            f"{rope.where}: low_freq_factor and high_freq_factor must differ, both are {low}"
        )
    return RopeConfig(
        rope_type="llama3",
        theta=theta,
        factor=_positive(rope, "factor"),
        original_max_position_embeddings=_original_positions(rope, config, max_positions),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _parse_yarn(rope: Fields, config: Fields, theta: float, max_positions: int) -> RopeConfig:
    original = _original_positions(rope, config, max_positions)
    has_factor = rope.values.get("factor") is not None
    attention_factor = rope.values.get("attention_factor")
    return RopeConfig(
        rope_type="yarn",
        theta=theta,
        factor=_positive(rope, "factor") if has_factor else max_positions / original,
        original_max_position_embeddings=original,
        attention_factor=None if attention_factor is None else rope.number("attention_factor"),
        # Zero counts as not given, as in `transformers`.
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        mscale=rope.number("mscale", 0.0),
        mscale_all_dim=rope.number("mscale_all_dim", 0.0),
        truncate=rope.boolean("truncate", True),
    )


def _original_positions(rope: Fields, config: Fields, max_positions: int) -> int:
    """The value beside the rope's own dict wins over the one inside, as in `transformers`."""
    inside = rope.integer("original_max_position_embeddings", max_positions)
    original = config.integer("original_max_position_embeddings", inside)
    if original < 1:
        raise CheckpointError(
            f"{rope.where}: original_max_position_embeddings must be positive, got {original}"
        )
    return original


def _positive(rope: Fields, name: str) -> float:
    value = rope.number(name)
    if value <= 0.0:
        raise CheckpointError(f"{rope.where}: {name} must be positive, got {value}")
    return value
