"""What routers and workers both tell of grammars."""

from collections.abc import Iterator

from prometheus_client import Metric

from octavo.grammar.counters import GrammarCounters
from octavo.metrics.families import Families


def grammar_figures(families: Families, counters: GrammarCounters) -> Iterator[Metric]:
    yield families.counter(
        "octavo_grammars_total",
        "Grammars of requests by what became of them; reused ones were not checked again.",
        {
            ("accepted",): counters.accepted,
            ("refused",): counters.refused,
            ("reused",): counters.reused,
        },
        ("outcome",),
    )
    yield families.histogram(
        "octavo_grammar_check_time_seconds",
        "To see, in a child process, whether a grammar compiles within the limits.",
        counters.check_s,
    )
