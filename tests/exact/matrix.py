"""The prompts of the exactness matrix, their reference, and how an answer is compared with it.

A mismatch counts as equal only where the reference's two best logits lie within NEAR_TIE; from
there on the two texts are different texts, so the comparison ends. Every such case is listed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from checkpoints import Reference, reference_run

BLOCK = 16
NUM_OUTPUT_TOKENS = 32
NEAR_TIE = 1e-4
LENGTHS = sorted(
    {1, 2000} | {BLOCK * k + d for k in (1, 2, 3, 4, 8, 16, 32, 64, 124) for d in (-1, 0, 1)}
)


@dataclass
class Matrix:
    """Prompts by length and what the reference outputs for each."""

    prompts: dict[int, list[int]]
    references: dict[int, Reference]
    near_ties: list[str] = field(default_factory=list)

    def check(self, length: int, token_ids: Sequence[int], situation: str) -> None:
        """Fail unless the tokens equal the reference's, or part from it at a near-tie."""
        reference = self.references[length]
        assert len(token_ids) == len(reference.token_ids), (situation, length)
        pairs = zip(token_ids, reference.token_ids, reference.margins, strict=True)
        for index, (ours, theirs, margin) in enumerate(pairs):
            if ours == theirs:
                continue
            place = f"{situation}: prompt of {length}, token {index}: {ours} for {theirs}"
            assert margin <= NEAR_TIE, f"{place}, the reference leads by {margin:g}"
            self.near_ties.append(f"{place}, near-tie of {margin:g}")
            return


def make_matrix(model: Path, vocab_size: int, lengths: Sequence[int] = LENGTHS) -> Matrix:
    """Random prompts that share no block, and the reference's 32 greedy tokens for each."""
    rng = np.random.default_rng(20)
    prompts = {length: rng.integers(3, vocab_size, size=length).tolist() for length in lengths}
    references = {
        length: reference_run(model, prompt, NUM_OUTPUT_TOKENS, ignore_eos=True)
        for length, prompt in prompts.items()
    }
    return Matrix(prompts, references)
