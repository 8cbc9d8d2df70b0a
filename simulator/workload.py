"""What is asked of the service, and when. Everything follows from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

# Mooncake's public conversation trace (FAST'25): 12,031 requests.
INPUT_P50, INPUT_P90 = 6_909, 27_367
OUTPUT_MEAN, OUTPUT_P50, OUTPUT_P90 = 343, 350, 597
Z90 = 1.2816  # the normal distribution's 90th percentile
MIN_INPUT, MAX_INPUT = 64, 126_000
MIN_OUTPUT, MAX_OUTPUT = 8, 2_000
FAMILY_SIZE = 20  # requests that share a beginning


@dataclass(slots=True, eq=False)
class Request:
    """One request and, once it ran, its story; token ids are below 256, which Python shares."""

    index: int
    num_prompt: int
    max_tokens: int
    num_shared: int = 0  # leading prompt tokens that are its family's
    family: int = 0
    arrives_s: float = 0.0
    sent_s: float = -1.0
    arrivals_s: list[float] = field(default_factory=list)  # of each token, at the client
    cached_tokens: int = 0
    moved_bytes: float = 0.0

    def prompt(self, seed: int) -> list[int]:
        shared = np.random.default_rng((seed, 1, self.family)).bytes(self.num_shared)
        own = np.random.default_rng((seed, 2, self.index)).bytes(self.num_prompt - self.num_shared)
        return list(shared + own)


def equal_requests(count: int, num_prompt: int, max_tokens: int) -> list[Request]:
    return [Request(index, num_prompt, max_tokens) for index in range(count)]


def poisson(requests: list[Request], per_second: float, seed: int) -> list[Request]:
    """Give the requests arrival times with exponential gaps."""
    gaps = np.random.default_rng((seed, 3)).exponential(1 / per_second, len(requests))
    for request, at in zip(requests, np.cumsum(gaps), strict=True):
        request.arrives_s = float(at)
    return requests


def conversations(count: int, hit_ceiling: float, block_size: int, seed: int) -> list[Request]:
    """Lengths like the trace's; an endless cache would find `hit_ceiling` of all full blocks.

    Raises:
        ValueError: so much cannot be shared by families of this size.
    """
    rng = np.random.default_rng((seed, 4))
    sigma = np.log(INPUT_P90 / INPUT_P50) / Z90
    inputs = np.clip(rng.lognormal(np.log(INPUT_P50), sigma, count), MIN_INPUT, MAX_INPUT)
    spread = (OUTPUT_P90 - OUTPUT_P50) / Z90
    outputs = np.clip(rng.normal(OUTPUT_MEAN, spread, count), MIN_OUTPUT, MAX_OUTPUT)
    families = rng.integers(max(1, count // FAMILY_SIZE), size=count)
    requests = [
        Request(index, int(length), int(output), family=int(family))
        for index, (length, output, family) in enumerate(
            zip(inputs, outputs, families, strict=True)
        )
    ]
    low, high = 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        _share(requests, share)
        is_enough = ceiling(requests, block_size) >= hit_ceiling
        low, high = (low, share) if is_enough else (share, high)
    _share(requests, high)
    if (most := ceiling(requests, block_size)) < hit_ceiling:
        raise ValueError(f"hit_ceiling is {hit_ceiling}, these requests reach {most:.3f}")
    return requests


def ceiling(requests: list[Request], block_size: int) -> float:
    """Share of full prompt blocks that an endless cache would have seen before."""
    seen: dict[int, int] = {}
    found = total = 0
    for request in requests:
        shared = request.num_shared // block_size
        found += min(shared, seen.get(request.family, 0))
        total += request.num_prompt // block_size
        seen[request.family] = max(shared, seen.get(request.family, 0))
    return found / max(total, 1)


def in_order(requests: list[Request]) -> Iterator[Request]:
    return iter(sorted(requests, key=lambda request: (request.arrives_s, request.index)))


def _share(requests: list[Request], share: float) -> None:
    for request in requests:
        request.num_shared = int(request.num_prompt * share)
