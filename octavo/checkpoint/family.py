"""What sets the architectures of the Llama family apart, and what `transformers` assumes where
config.json is silent."""

from dataclasses import dataclass
from enum import Enum, auto


class WindowRule(Enum):
    """How a family reads its sliding window fields."""

    NONE = auto()  # every layer sees everything, whatever sliding_window says
    ALL_LAYERS = auto()  # sliding_window holds for every layer unless it is null
    LAYER_TYPES = auto()  # use_sliding_window switches it on, layer_types says where


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    always_qkv_bias: bool = False
    reads_attention_bias: bool = False  # attention_bias: q, k, v and o have one
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    window_rule: WindowRule = WindowRule.NONE
    absent_num_kv_heads: int | None = None  # None: num_attention_heads
    absent_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    absent_eos_token_ids: tuple[int, ...] = ()


FAMILIES = {
    "LlamaForCausalLM": Family(
        reads_attention_bias=True, reads_mlp_bias=True, absent_eos_token_ids=(2,)
    ),
    "MistralForCausalLM": Family(
        window_rule=WindowRule.ALL_LAYERS, absent_num_kv_heads=8, absent_eos_token_ids=(2,)
    ),
    "Qwen2ForCausalLM": Family(
        always_qkv_bias=True, window_rule=WindowRule.LAYER_TYPES, absent_num_kv_heads=32
    ),
    "Qwen3ForCausalLM": Family(
        reads_attention_bias=True,
        qk_norm=True,
        window_rule=WindowRule.LAYER_TYPES,
        absent_num_kv_heads=32,
        absent_head_dim=128,
    ),
}
