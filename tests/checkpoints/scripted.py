"""A real Llama checkpoint whose next token is a table of the last one.

    token id --embed--> one-hot of its row in the table --norm--> same one-hot, scaled
                --lm_head--> SCALE * sqrt(hidden) at table[token id], 0 elsewhere

Attention and MLP run as in any checkpoint and add exactly zero, so the answer is known without a
reference, in every dtype, and any sampling with a temperature near 1 follows it too.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from checkpoints.families import BASE, random_tensors, write_config
from checkpoints.tokenizer import IM_END, tiny_tokenizer, write_tokenizer

# With hidden >= 64 the scripted token leads by at least 64: e^-64 of the mass is elsewhere.
SCALE = 8.0


def scripted(
    path: Path,
    table: dict[int, int],
    vocab_size: int = 384,
    tokenizer: Tokenizer | None = None,
    *,
    default: int = IM_END,
    eos_token_id: int | list[int] = IM_END,
    **overrides: object,
) -> Path:
    """Write the checkpoint: after token t comes table[t], or default where the table has no t."""
    path.mkdir(parents=True, exist_ok=True)
    hidden = max(64, -(-(len(table) + 1) // 16) * 16)
    config = BASE | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "eos_token_id": eos_token_id,
    }
    config |= overrides
    write_config(path, config)
    write_tokenizer(path, tokenizer or tiny_tokenizer(vocab_size))
    tensors = random_tensors(config, "LlamaForCausalLM", seed=0)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif name == "model.norm.weight":
            tensor.fill_(1.0)
    tensors |= _table_tensors(table, default, vocab_size, hidden)
    dtype = getattr(torch, str(config["torch_dtype"]))
    save_file(
        {name: tensor.to(dtype) for name, tensor in tensors.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    return path


def _table_tensors(
    table: dict[int, int], default: int, vocab_size: int, hidden: int
) -> dict[str, torch.Tensor]:
    """Row 0 of the hidden space stands for all tokens without an entry."""
    embed = torch.zeros(vocab_size, hidden)
    head = torch.zeros(vocab_size, hidden)
    embed[:, 0] = 1.0
    head[default, 0] = SCALE
    for row, (token_id, next_id) in enumerate(table.items(), start=1):
        embed[token_id, 0] = 0.0
        embed[token_id, row] = 1.0
        head[next_id, row] = SCALE
    return {"model.embed_tokens.weight": embed, "lm_head.weight": head}
