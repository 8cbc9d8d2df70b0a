"""Which tensors a checkpoint of the Llama family holds, checked before a byte of them is read."""

import re

from octavo.checkpoint.config import ModelConfig
from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.weights import WeightFiles

EMBED, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# Tables that old versions saved; computed here.
IGNORED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
FLOAT_DTYPES = ("F32", "BF16", "F16", "F64")
MAX_NAMED = 5


def layer_name(layer: int, part: str) -> str:
    """Full name of a part such as self_attn.q_proj.weight."""
    return f"model.layers.{layer}.{part}"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor the model needs."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        for part, shape in _layer_shapes(config).items():
            shapes[layer_name(layer, part)] = shape
    shapes[FINAL_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_tensors(config: ModelConfig, weights: WeightFiles) -> None:
    """Raise CheckpointError unless the files hold exactly what the model needs."""
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in weights.tensors]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_listed(missing)} ({_where(weights)})")
    redundant = {HEAD} if config.tie_word_embeddings else set[str]()
    unexpected = [
        name
        for name in weights.tensors
        if name not in shapes and name not in redundant and not IGNORED.fullmatch(name)
    ]
    if unexpected:
        raise CheckpointError(
            f"{config.architecture} has no place for {_listed(unexpected)} ({_where(weights)})"
        )
    if HEAD in weights.tensors:
        shapes[HEAD] = shapes[EMBED]
    for name, shape in shapes.items():
        place = weights.tensors[name]
        if place.shape != shape:
            raise CheckpointError(
                f"tensor {name} must have shape {shape} by config.json, has {place.shape}"
            )
        if place.dtype not in FLOAT_DTYPES:
            raise CheckpointError(
                f"tensor {name} has dtype {place.dtype}; known: {', '.join(FLOAT_DTYPES)}"
            )


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (width, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_width, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_width, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, width, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (num_out, num_in, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (num_out, num_in)
        if has_bias:
            shapes[f"{name}.bias"] = (num_out,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {', '.join(names[:MAX_NAMED])}{more}"


def _where(weights: WeightFiles) -> str:
    return str(weights.files[0].parent)
