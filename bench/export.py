"""The one copy of the weights that every engine is given, always at the same path.

vLLM keys its compiled code by the path of the model: a new path would be compiled anew.
"""

import hashlib
from pathlib import Path

from octavo.checkpoint.cache import build_once, cache_dir


def bfloat16_export(model: Path) -> Path:
    """A bfloat16 copy of a checkpoint with its tokenizer, made once."""
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in model.iterdir()]
    state = repr((str(model.resolve()), sorted(facts))).encode()
    target = cache_dir() / "bench" / f"bfloat16-{hashlib.blake2b(state, digest_size=8).hexdigest()}"
    return build_once(target, lambda folder: _export(model, folder))


def _export(model: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
