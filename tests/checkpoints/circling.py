"""A random checkpoint that mostly goes round a phrase, as text that is worth guessing does.

    embedding of phrase[i] --little of attention and MLP is added--> mostly itself
                           --head, whose row of phrase[i + 1] likes it--> phrase[i + 1], as a rule

Attention still shows in every logit, and with rules or temperature in many tokens.
"""

from pathlib import Path

from safetensors.torch import load_file, save_file

from checkpoints.families import write_checkpoint

PHRASE = [11, 45, 7, 300, 21, 9, 88, 130, 60, 41, 17]
SHARE = 0.02  # of what attention and MLP would add
LIKING = 1.5  # times the embedding's direction; a random row of the head has length 2


def circling(path: Path, **overrides: object) -> Path:
    """A Llama, or with sliding_window a Mistral; after the phrase's last token comes its first."""
    is_mistral = "sliding_window" in overrides
    architecture = "MistralForCausalLM" if is_mistral else "LlamaForCausalLM"
    write_checkpoint(path, architecture, "mistral" if is_mistral else "llama", overrides)
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(SHARE)
    embed, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    for token_id, next_id in zip(PHRASE, PHRASE[1:] + PHRASE[:1], strict=True):
        head[next_id] += LIKING * embed[token_id] / embed[token_id].norm()
    save_file(tensors, file, metadata={"format": "pt"})
    return path
