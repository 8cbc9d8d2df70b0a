"""What a step found for one sequence."""

from dataclasses import dataclass

from octavo.engine.beam_state import BeamCandidates
from octavo.engine.errors import InvalidLogits
from octavo.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability, for sequences that ask for it."""

    token_id: int
    logprobs: TokenLogprobs


Token = int | ScoredToken
# Of a sampled sequence. Beams of a search choose together: their candidates stand in the place of
# the last one, None in those of the others.
Choice = Token | InvalidLogits | BeamCandidates | None
PromptScore = TokenLogprobs | InvalidLogits  # of a chunk's prompt_rows
