"""What a scheduler may hold at once, and which sequences can never fit."""

from dataclasses import dataclass

from octavo.engine.sequence import Sequence
from octavo.prompt_limits import check_length


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

    def check_samples(self, seq: Sequence, num_blocks: int) -> None:
        """Raise ValueError, naming the limit, if the samples of a request can never run at once.

        num_blocks: of the pool.
        """
        num_samples = seq.num_rows
        name, most, bound = "n", self.max_num_seqs, "max_num_seqs"
        if seq.beams is not None:
            name = "beam_search.width"  # all beams take every step together
            if self.max_num_batched_tokens < most:
                most, bound = self.max_num_batched_tokens, "max_num_batched_tokens"
        if num_samples > most:
            raise ValueError(f"{name} must be 1 to {most} ({bound}), got {num_samples}")
        num_shared = seq.num_prompt_tokens // self.block_size
        num_slots = seq.num_prompt_tokens + seq.sampling.max_tokens - 1
        needed = num_shared + num_samples * (-(-num_slots // self.block_size) - num_shared)
        if needed > num_blocks:
            raise ValueError(
                f"{name} {num_samples} with max_tokens {seq.sampling.max_tokens} and a prompt of "
                f"{seq.num_prompt_tokens} tokens may need {needed} blocks, there are {num_blocks}"
            )

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
        if (seq.num_siblings or seq.beams is not None) and seq.num_output_tokens:
            raise ValueError(
                "n must be 1, and no beam_search set, where output tokens are given: samples of an "
                "earlier attempt go on alone, beams start again"
            )
        if seq.sampling.seed is None and not seq.sampling.is_greedy:
            raise ValueError("sampling.seed is not set; only greedy sequences go without")
