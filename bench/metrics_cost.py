"""What metrics cost: a step's times between tokens, and one scrape.

    python bench/metrics_cost.py [--sequences 64]

A step's outputs for so many sequences are counted again and again; the median is told. The scrape
is the text of a decode worker's figures, without the port.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from octavo.engine.sequence import SequenceOutput
from octavo.engine.stream import SequenceStream
from octavo.engine.token_gaps import TokenGaps
from octavo.histogram import FIRST_TOKEN_S, Histogram
from octavo.metrics.families import Families

ROUNDS = 2000


class Figures(Collector):
    """As many figures of each kind as a decode worker has."""

    def collect(self):  # type: ignore[no-untyped-def]
        families = Families(model_name="model", role="decode")
        for number in range(40):
            yield families.counter(f"octavo_{number}_total", "A sum.", float(number))
        for number in range(8):
            yield families.histogram(f"octavo_{number}_seconds", "Times.", Histogram(FIRST_TOKEN_S))


def median_us(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=64)
    count = parser.parse_args().sequences
    streams = {str(number): SequenceStream() for number in range(count)}
    outputs = [SequenceOutput(seq_id, 100, (7,)) for seq_id in streams]
    gaps = TokenGaps()
    step_us = median_us(lambda: gaps.count(outputs, streams))
    print(f"a step of {count} sequences: {step_us:.1f} us")
    registry = CollectorRegistry()
    registry.register(Figures())
    print(f"a scrape: {median_us(lambda: generate_latest(registry), 100) / 1000:.2f} ms")


if __name__ == "__main__":
    main()
