"""config.json and generation_config.json from the metadata of a GGUF file."""

from typing import Any

from octavo.checkpoint.errors import CheckpointError, UnsupportedModel
from octavo.checkpoint.gguf_metadata import GgufMetadata
from octavo.checkpoint.gguf_rope import gguf_rope

# GGUF architecture -> (Hugging Face architecture, model_type). Mistral files say llama.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
EMBED = "token_embd.weight"
SPLIT = "split.count"
HEADS = "attention.head_count"
WINDOWED_LLAMA = ("MistralForCausalLM", "mistral")
# End-of-sequence and end-of-turn; chat models stop at either.
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def gguf_config(metadata: GgufMetadata, reader: Any) -> dict[str, object]:
    """The fields of config.json.

    Raises:
        UnsupportedModel: the architecture or the way of its windows and ropes is not known.
        CheckpointError: a key is missing or has the wrong type, or there is no embedding.
    """
    window = metadata.optional_integer("attention.sliding_window")
    architecture, model_type = _architecture(metadata, window)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if EMBED not in tensors:
        raise CheckpointError(f"{metadata.where} lacks the tensor {EMBED}")
    hidden, num_heads = metadata.integer("embedding_length"), metadata.integer(HEADS)
    config: dict[str, object] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": int(tensors[EMBED].shape[1]),  # GGUF writes shapes innermost first
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.optional_integer(f"{HEADS}_kv") or num_heads,
        "head_dim": _head_dim(metadata, hidden, num_heads),
        "hidden_act": "silu",
        "rms_norm_eps": metadata.fields.number(metadata.key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": metadata.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": gguf_rope(metadata, tensors.get("rope_freqs.weight")),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "torch_dtype": _dtype(reader),
    }
    if window:
        config["sliding_window"] = window
    return config | _token_ids(metadata)


def gguf_generation(metadata: GgufMetadata) -> dict[str, object]:
    """The fields of generation_config.json: token ids only, a GGUF recommends no sampling."""
    return _token_ids(metadata)


def _architecture(metadata: GgufMetadata, window: int | None) -> tuple[str, str]:
    if metadata.fields.integer(SPLIT, 1) > 1:
        raise UnsupportedModel(f"{metadata.where}: {SPLIT}: a file in parts is not supported")
    if metadata.architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{metadata.where}: general.architecture {metadata.architecture!r} is not supported; "
            f"known: {', '.join(ARCHITECTURES)}"
        )
    if not window:
        return ARCHITECTURES[metadata.architecture]
    if metadata.architecture != "llama":
        raise UnsupportedModel(
            f"{metadata.where}: {metadata.key('attention.sliding_window')} does not say which "
            "layers it is for"
        )
    return WINDOWED_LLAMA


def _head_dim(metadata: GgufMetadata, hidden: int, num_heads: int) -> int:
    head_dim = metadata.optional_integer("attention.key_length") or hidden // num_heads
    for name in ("rope.dimension_count", "attention.value_length"):
        other = metadata.optional_integer(name)
        if other is not None and other != head_dim:
            raise UnsupportedModel(
                f"{metadata.where}: {metadata.key(name)} is {other}, the heads have {head_dim}"
            )
    return head_dim


def _token_ids(metadata: GgufMetadata) -> dict[str, object]:
    ids: dict[str, object] = {}
    fields = metadata.fields
    for name in ("bos", "padding"):
        if fields.has(f"tokenizer.ggml.{name}_token_id"):
            key = "pad" if name == "padding" else name
            ids[f"{key}_token_id"] = fields.integer(f"tokenizer.ggml.{name}_token_id")
    eos = list(dict.fromkeys(fields.integer(key) for key in EOS_KEYS if fields.has(key)))
    # An empty list, not an absent field: that would mean the family's default.
    ids["eos_token_id"] = eos[0] if len(eos) == 1 else eos
    return ids


def _dtype(reader: Any) -> str:
    """The dtype of all matrices if they share one; float32 holds everything else exactly."""
    types = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    return {"F16": "float16", "BF16": "bfloat16"}.get(
        types.pop() if len(types) == 1 else "", "float32"
    )
