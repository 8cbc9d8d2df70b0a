"""Log-probabilities of tokens, as the engine computes them and as callers read them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of consecutive tokens, under the softmax of the model's own logits (no rule, temperature 1).

    Of every token there are the num_top likeliest in its place, the likeliest first, of equals the
    lower id first; the lists of all tokens stand one behind the other.
    """

    logprobs: tuple[float, ...]
    num_top: int = 0
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.logprobs)

    def part(self, start: int, stop: int) -> "TokenLogprobs":
        """Those of tokens start .. stop - 1."""
        top = slice(start * self.num_top, stop * self.num_top)
        return TokenLogprobs(
            self.logprobs[start:stop],
            self.num_top,
            self.top_token_ids[top],
            self.top_logprobs[top],
        )

    def rows(self, token_ids: Sequence[int]) -> list["TokenLogprob"]:
        """One for each of the tokens, whose ids these are."""
        found = []
        for index, (token_id, logprob) in enumerate(zip(token_ids, self.logprobs, strict=True)):
            top = slice(index * self.num_top, (index + 1) * self.num_top)
            pairs = zip(self.top_token_ids[top], self.top_logprobs[top], strict=True)
            found.append(TokenLogprob(token_id, logprob, list(pairs)))
        return found


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability, and which tokens were the likeliest in its place."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # (token id, log-probability), the likeliest first


def joined(parts: Sequence[TokenLogprobs]) -> TokenLogprobs:
    """Of tokens that follow each other, in one; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    return TokenLogprobs(
        tuple(value for part in parts for value in part.logprobs),
        parts[0].num_top,
        tuple(token_id for part in parts for token_id in part.top_token_ids),
        tuple(value for part in parts for value in part.top_logprobs),
    )
