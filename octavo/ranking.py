"""Which samples of a request are the best: those whose tokens have the highest mean
log-probability."""

from collections.abc import Sequence


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Of a sample's tokens, the one that ended it included; there is at least one."""
    return sum(logprobs) / len(logprobs)


def best(scores: Sequence[float], count: int) -> list[int]:
    """Indexes of the highest scores, the highest first; of equals the lower index first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:count]
