"""What `transformers` says: greedy tokens and logits at batch 1, the yardstick of exactness."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Reference:
    """A greedy run: tokens, and by how much each led over the runner-up."""

    token_ids: list[int]
    margins: list[float]


def reference_generate(
    path: Path,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    dtype: torch.dtype = torch.float32,
) -> list[int]:
    """The tokens `transformers` generates greedily, an end-of-sequence token included."""
    return reference_run(path, prompt_ids, max_new_tokens, dtype).token_ids


def reference_run(
    path: Path,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    dtype: torch.dtype = torch.float32,
    ignore_eos: bool = False,
) -> Reference:
    """`reference_generate` with the lead of each token, which tells a near-tie from a mistake."""
    return greedy_run(
        reference_model(path, dtype), prompt_ids, max_new_tokens, ignore_eos=ignore_eos
    )


def greedy_run(
    model: Any, prompt_ids: Sequence[int], max_new_tokens: int, *, ignore_eos: bool
) -> Reference:
    """`reference_run` of a model that is loaded already."""
    prompt = torch.tensor([list(prompt_ids)])
    output = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        temperature=None,
        top_p=None,
        top_k=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        **({"eos_token_id": None, "min_new_tokens": max_new_tokens} if ignore_eos else {}),
    )
    best = [logits[0].float().topk(2).values for logits in output.logits]
    return Reference(
        token_ids=output.sequences[0, prompt.shape[1] :].tolist(),
        margins=[float(top[0] - top[1]) for top in best],
    )


@torch.inference_mode()
def reference_logits(
    path: Path, token_ids: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits after every token, [len(token_ids), vocab_size] float32, in one cold pass."""
    model = reference_model(path, dtype)
    logits: torch.Tensor = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits.float()


def reference_model(path: Path, dtype: torch.dtype) -> Any:
    """The folder's model in `transformers`, loaded once for all tests of a process."""
    config = (path / "config.json").stat()
    return _load(path, dtype, config.st_mtime_ns)


@lru_cache(maxsize=4)
def _load(path: Path, dtype: torch.dtype, config_mtime_ns: int) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


@torch.inference_mode()
def reference_gguf_logits(file: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """`reference_logits` of a GGUF file as `transformers` itself reads it."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    logits: torch.Tensor = model.eval()(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits
