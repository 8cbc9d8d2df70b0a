"""LoRA adapters that PEFT itself writes for a tiny checkpoint, and what it says they output.

PEFT imports Triton, which must not happen before tests/kernels/gpu has chosen the interpreter.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from checkpoints.reference import Reference, greedy_run

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def tiny_adapter(base: Path, path: Path, seed: int = 1, **config: Any) -> Path:
    """A folder as `save_pretrained` leaves it; its weights change most greedy tokens."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "lora_alpha": 8, "target_modules": list(ALL_TARGETS)} | config
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with warnings.catch_warnings(action="ignore"):  # PEFT's own, of transformers it is older than
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in adapted.named_parameters():
        if "lora_" in name:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.data.copy_(noise / tensor.shape[-1] ** 0.5)
    adapted.save_pretrained(path)
    return path


def adapted_run(base: Path, adapter: Path | None, prompt: Sequence[int], count: int) -> Reference:
    """Greedy tokens of `transformers` and `peft` at batch 1, end-of-sequence tokens passed over."""
    return greedy_run(adapted_model(base, adapter), prompt, count, ignore_eos=True)


@lru_cache(maxsize=16)
def adapted_model(base: Path, adapter: Path | None) -> Any:
    """Loaded once for all tests of a process."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter is not None:
        from peft import PeftModel

        with warnings.catch_warnings(action="ignore"):
            model = PeftModel.from_pretrained(model, adapter)
    return model.eval()
