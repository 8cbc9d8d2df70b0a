"""A random checkpoint that soon repeats itself, as text that is worth guessing does.

What attention and MLP add to a token's embedding is scaled down, so that the next token is mostly a
function of the last one, and a greedy output goes round in circles. Attention still shows in every
logit, and now and then in a token.
"""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file

from checkpoints.families import tiny_llama

SHARE = 0.15


def circling(path: Path, make: Callable[[Path], Path] = tiny_llama) -> Path:
    """`make`'s checkpoint, whose head must not be tied to the embedding."""
    file = make(path) / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(SHARE)
    save_file(tensors, file, metadata={"format": "pt"})
    return path
