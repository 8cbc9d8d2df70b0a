"""Writes a checkpoint folder as a GGUF file, the way llama.cpp's converter does."""

import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
Metadata = dict[str, int | float | str]


def write_gguf(
    checkpoint: Path,
    target: Path,
    file_type: str = "F32",
    metadata: Metadata | None = None,
    extra_tensors: dict[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """file_type: of the matrices (F32, F16, BF16, Q8_0, Q4_0, ...); norms and biases stay F32."""
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(str(target), architecture)
    _add_config(writer, config, architecture)
    for key, value in (metadata or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)  # type: ignore[operator]
    _add_tokenizer(writer, checkpoint, config)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = _permuted(name, tensor.float(), config).numpy()
        qtype = gguf.GGMLQuantizationType[file_type if values.ndim > 1 else "F32"]
        data = gguf.quantize(values, qtype)
        writer.add_tensor(gguf_name(name), data, raw_dtype=qtype)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def gguf_name(name: str) -> str:
    """model.layers.0.self_attn.q_proj.weight -> blk.0.attn_q.weight."""
    stem, suffix = name.rsplit(".", 1)
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{suffix}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{suffix}"


def _add_config(writer: gguf.GGUFWriter, config: dict[str, object], architecture: str) -> None:
    whole = {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "rope.dimension_count": "head_dim",
        "vocab_size": "vocab_size",
    }
    for key, field in whole.items():
        writer.add_uint32(f"{architecture}.{key}", int(str(config[field])))
    writer.add_float32(f"{architecture}.rope.freq_base", float(str(config["rope_theta"])))
    eps = float(str(config["rms_norm_eps"]))
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", eps)


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, config: dict[str, object]) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = [token for token, _ in sorted(ids.items(), key=lambda item: item[1])]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(int(str(config["bos_token_id"])))
    writer.add_eos_token_id(int(str(config["eos_token_id"])))
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def _permuted(name: str, tensor: torch.Tensor, config: dict[str, object]) -> torch.Tensor:
    """llama.cpp keeps the two halves of each rotary pair side by side."""
    if config["model_type"] != "llama":
        return tensor
    heads = {".q_proj.": "num_attention_heads", ".k_proj.": "num_key_value_heads"}
    for part, field in heads.items():
        if part in name:
            num_heads = int(str(config[field]))
            halves = tensor.view(num_heads, 2, -1, *tensor.shape[1:])
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor
