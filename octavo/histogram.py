"""How many values came, by size: cheap to add to, readable by another thread at any time.

What such a histogram is called outside, octavo/metrics knows. The limits are vLLM's (its
vllm/v1/metrics/buckets.py) wherever it has the figure, so that both can stand in one panel.
"""

from bisect import bisect_left
from itertools import accumulate

REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
# As vLLM's for a model of this context; there they end with the model's own.
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

# Without a counterpart there.
HAND_OVER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CALL_S = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 2.0)


class Histogram:
    """One thread adds. Others may read meanwhile: then the sum may lack the newest value."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        """limits: ascending; a value belongs to the first that is not smaller."""
        self.sum = 0.0
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or as many equal ones."""
        self._counts[bisect_left(self._limits, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(limit, values up to it) for each limit and then for infinity."""
        limits = (*self._limits, float("inf"))
        return list(zip(limits, accumulate(list(self._counts)), strict=True))
