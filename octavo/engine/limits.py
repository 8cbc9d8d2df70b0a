"""What a scheduler may hold at once, and which sequences can never fit."""

from dataclasses import dataclass

from octavo.engine.sequence import Sequence
from octavo.sampling_params import check_length


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one scheduler.

    Raises:
        ValueError: a bound is out of range; the message names it.
    """

    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int  # prompt and output of one sequence, at most the pool's capacity
    num_draft_rows: int = 0  # decode rows that only guesses may have, beside max_num_seqs

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2, got {self.max_model_len}")

    @property
    def max_decode_rows(self) -> int:
        """Of one step, drafts included."""
        return self.max_num_seqs + self.num_draft_rows

    def check(self, seq: Sequence) -> None:
        """Raise ValueError, naming the limit, if `seq` can never run to its end."""
        if not 1 <= seq.num_prompt_tokens <= seq.num_tokens:
            raise ValueError(
                f"num_prompt_tokens must be 1 to {seq.num_tokens}, got {seq.num_prompt_tokens}"
            )
        check_length(seq.num_prompt_tokens, seq.sampling.max_tokens, self.max_model_len)
        if seq.num_output_tokens >= seq.sampling.max_tokens:
            raise ValueError(
                f"{seq.num_output_tokens} output tokens are given, max_tokens is "
                f"{seq.sampling.max_tokens}: nothing is left to generate"
            )
        if seq.sampling.seed is None and not seq.sampling.is_greedy:
            raise ValueError("sampling.seed is not set; only greedy sequences go without")
