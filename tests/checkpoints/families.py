"""Tiny checkpoints of every family with random weights: `tiny_llama(tmp_path / "m")` and the like.

Weights are drawn so that attention matters and the logits spread (unlike `transformers`' own
initialisation, under which every next token is nearly a tie). Every bias and norm is random too: a
forgotten one shows.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from checkpoints.tokenizer import END_OF_TEXT, IM_END, tiny_tokenizer, write_tokenizer

BASE: dict[str, object] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": IM_END,
    "torch_dtype": "float32",
}


def tiny_llama(path: Path, **overrides: object) -> Path:
    """Llama: no biases, untied head."""
    return write_checkpoint(path, "LlamaForCausalLM", "llama", overrides)


def tiny_mistral(path: Path, **overrides: object) -> Path:
    """Mistral: a sliding window of 64 in every layer."""
    return write_checkpoint(
        path, "MistralForCausalLM", "mistral", {"sliding_window": 64} | overrides
    )


def tiny_qwen2(path: Path, **overrides: object) -> Path:
    """Qwen2: biases on q, k and v, tied head."""
    return write_checkpoint(
        path, "Qwen2ForCausalLM", "qwen2", {"tie_word_embeddings": True} | overrides
    )


def tiny_qwen3(path: Path, **overrides: object) -> Path:
    """Qwen3: norms on q and k, a head_dim that is not hidden_size / num_heads, tied head."""
    own = {"tie_word_embeddings": True, "head_dim": 32}
    return write_checkpoint(path, "Qwen3ForCausalLM", "qwen3", own | overrides)


def write_checkpoint(
    path: Path, architecture: str, model_type: str, overrides: dict[str, object], seed: int = 0
) -> Path:
    """Write config, tokenizer and random weights; overrides are fields of config.json."""
    path.mkdir(parents=True, exist_ok=True)
    config = BASE | {"architectures": [architecture], "model_type": model_type} | overrides
    write_config(path, config)
    write_tokenizer(path, tiny_tokenizer(sizes_of(config)["vocab_size"]))
    dtype = getattr(torch, str(config["torch_dtype"]))
    tensors = random_tensors(config, architecture, seed)
    save_file(
        {name: tensor.to(dtype) for name, tensor in tensors.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    return path


def write_config(path: Path, config: dict[str, object]) -> None:
    """config.json and generation_config.json (token ids only)."""
    (path / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}
    (path / "generation_config.json").write_text(json.dumps(ids), encoding="utf-8")


def random_tensors(
    config: dict[str, object], architecture: str, seed: int
) -> dict[str, torch.Tensor]:
    """Every tensor of the architecture under its Hugging Face name."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(config, architecture).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensors[name] = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            tensors[name] = 0.3 * noise
        elif name == "model.embed_tokens.weight":
            tensors[name] = noise / 4.0
        else:
            tensors[name] = 2.0 * noise / shape[-1] ** 0.5
    return tensors


def sizes_of(config: dict[str, object]) -> dict[str, int]:
    """The whole numbers of a config."""
    return {name: value for name, value in config.items() if isinstance(value, int)}


def tensor_shapes(config: dict[str, object], architecture: str) -> dict[str, tuple[int, ...]]:
    """Name to shape, as `transformers` saves the architecture."""
    sizes = sizes_of(config)
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    width = sizes["num_attention_heads"] * sizes["head_dim"]
    kv_width = sizes["num_key_value_heads"] * sizes["head_dim"]
    reads_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    o_bias = reads_bias and bool(config.get("attention_bias", False))
    qkv_bias = o_bias or architecture == "Qwen2ForCausalLM"
    mlp_bias = architecture == "LlamaForCausalLM" and bool(config.get("mlp_bias", False))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes["vocab_size"], hidden)
    }
    for layer in range(sizes["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        linears = {
            "self_attn.q_proj": (width, hidden, qkv_bias),
            "self_attn.k_proj": (kv_width, hidden, qkv_bias),
            "self_attn.v_proj": (kv_width, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, width, o_bias),
            "mlp.gate_proj": (inner, hidden, mlp_bias),
            "mlp.up_proj": (inner, hidden, mlp_bias),
            "mlp.down_proj": (hidden, inner, mlp_bias),
        }
        for name, (num_out, num_in, has_bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (num_out, num_in)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (num_out,)
        if architecture == "Qwen3ForCausalLM":
            shapes[f"{prefix}self_attn.q_norm.weight"] = (sizes["head_dim"],)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (sizes["head_dim"],)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (sizes["vocab_size"], hidden)
    return shapes
