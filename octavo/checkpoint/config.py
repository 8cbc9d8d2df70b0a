"""What a model is: config.json of the Llama family, read the way `transformers` reads it.

A field that changes the computation and that Octavo does not know is refused by name here, before
a weight is loaded; the model code then has no unknown cases.
"""

from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.errors import CheckpointError, UnsupportedModel
from octavo.checkpoint.family import FAMILIES, Family
from octavo.checkpoint.fields import Fields, read_fields
from octavo.checkpoint.generation import (
    GenerationDefaults,
    load_generation_defaults,
    read_generation_fields,
)
from octavo.checkpoint.rope_config import RopeConfig, parse_rope
from octavo.checkpoint.window import sliding_windows

__all__ = [
    "GenerationDefaults",
    "ModelConfig",
    "RopeConfig",
    "load_config",
    "load_generation_defaults",
]

CONFIG = "config.json"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    sliding_windows: tuple[int, ...]  # per layer, how many newest tokens it sees; 0: all
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: str  # of the weights, one of DTYPES


def load_config(path: Path) -> ModelConfig:
    """Read the folder's config.json (and the token ids of generation_config.json).

    Raises:
        UnsupportedModel: the architecture, or the value of a field, is none that Octavo computes.
        CheckpointError: a field is missing, has the wrong type or contradicts another.
    """
    fields = read_fields(path / CONFIG)
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    _refuse_unknown(fields)
    max_positions = fields.integer("max_position_embeddings")
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers")
    bias = fields.boolean("attention_bias", False)
    eos, bos = _special_token_ids(path, fields, family)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=_head_dim(fields, family, num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position_embeddings=max_positions,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=family.always_qkv_bias or (family.reads_attention_bias and bias),
        o_bias=family.reads_attention_bias and bias,
        mlp_bias=family.reads_mlp_bias and fields.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        rope=parse_rope(fields, max_positions),
        sliding_windows=sliding_windows(fields, family, num_layers),
        eos_token_ids=eos,
        bos_token_id=bos,
        dtype=_dtype(fields),
    )
    _check_sizes(config, fields.where)
    return config


def _architecture(fields: Fields) -> str:
    architectures = fields.strings("architectures") or []
    if len(architectures) != 1 or architectures[0] not in FAMILIES:
        raise UnsupportedModel(
            f"{fields.where}: architecture {', '.join(architectures) or 'none'} is not supported; "
            f"known: {', '.join(FAMILIES)}"
        )
    return architectures[0]


def _refuse_unknown(fields: Fields) -> None:
    """Refuse values under which the same tensors would mean something else."""
    activation = fields.string("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{fields.where}: hidden_act {activation!r} is not supported")
    if fields.values.get("quantization_config") is not None:
        raise UnsupportedModel(f"{fields.where}: quantization_config is not supported")


def _num_kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    absent = num_heads if fields.has("num_key_value_heads") else family.absent_num_kv_heads
    return fields.integer("num_key_value_heads", absent or num_heads)


def _head_dim(fields: Fields, family: Family, num_heads: int) -> int:
    if num_heads < 1:
        raise CheckpointError(f"{fields.where}: num_attention_heads must be positive")
    derived = fields.integer("hidden_size") // num_heads
    absent = None if fields.has("head_dim") else family.absent_head_dim
    return fields.integer("head_dim", absent or derived)


def _dtype(fields: Fields) -> str:
    """`dtype` in transformers 5, `torch_dtype` before; float32 where neither says anything."""
    dtype = fields.string("dtype", fields.string("torch_dtype", "float32")).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UnsupportedModel(f"{fields.where}: dtype {dtype!r} is none of {', '.join(DTYPES)}")
    return dtype


def _special_token_ids(
    path: Path, fields: Fields, family: Family
) -> tuple[tuple[int, ...], int | None]:
    """(EOS ids, BOS id): generation_config.json first, then config.json, then the family's."""
    generation = read_generation_fields(path)
    eos = generation.token_ids("eos_token_id")
    if eos is None:
        absent = () if fields.has("eos_token_id") else family.absent_eos_token_ids
        eos = fields.token_ids("eos_token_id") or absent
    bos = generation.token_ids("bos_token_id") or fields.token_ids("bos_token_id")
    return eos, bos[0] if bos else None


def _check_sizes(config: ModelConfig, where: str) -> None:
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_kv_heads",
        "head_dim",
        "max_position_embeddings",
    ):
        if getattr(config, name) < 1:
            raise CheckpointError(f"{where}: {name} must be positive, got {getattr(config, name)}")
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: num_attention_heads {config.num_heads} is no multiple of "
            f"num_key_value_heads {config.num_kv_heads}"
        )
    if config.head_dim % 2:
        raise UnsupportedModel(f"{where}: head_dim must be even, got {config.head_dim}")
    for token_id in config.eos_token_ids:
        if not 0 <= token_id < config.vocab_size:
            raise CheckpointError(
                f"{where}: eos_token_id must be 0 to {config.vocab_size - 1}, got {token_id}"
            )
