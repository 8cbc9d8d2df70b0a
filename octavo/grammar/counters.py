"""What became of the grammars that requests brought."""

from dataclasses import dataclass, field

from octavo.histogram import CALL_S, Histogram


@dataclass(slots=True)
class GrammarCounters:
    """Times are added by the grammars' thread, the rest by the event loop."""

    accepted: int = 0
    refused: int = 0
    reused: int = 0  # known already, and not checked again
    check_s: Histogram = field(default_factory=lambda: Histogram(CALL_S))
    compile_s: Histogram = field(default_factory=lambda: Histogram(CALL_S))  # a worker's
