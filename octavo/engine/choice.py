"""What a step found for one sequence."""

from dataclasses import dataclass

from octavo.engine.errors import InvalidLogits
from octavo.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability, for sequences that ask for it."""

    token_id: int
    logprobs: TokenLogprobs


Token = int | ScoredToken
Choice = Token | InvalidLogits  # of a sampled sequence
PromptScore = TokenLogprobs | InvalidLogits  # of a chunk's prompt_rows
