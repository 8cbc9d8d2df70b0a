"""Prompts of any length, and what should follow them."""

import random
from pathlib import Path

from checkpoints import reference_run
from octavo.sampling_params import SamplingParams


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Equal for equal arguments; the vocabulary of the tiny checkpoints less its special tokens."""
    return random.Random(f"{seed}/{length}").choices(range(3, 370), k=length)


def expected_tokens(model: Path, prompt: list[int], max_tokens: int = 8) -> list[int]:
    return reference_run(model, prompt, max_tokens).token_ids


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens)
