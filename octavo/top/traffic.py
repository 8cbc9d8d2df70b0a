"""The last minute: rates and their trends, how many requests, what caches saved."""

from collections.abc import Callable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from octavo.top.history import History, Interval
from octavo.top.marks import Glyphs, count, rate, size, sparkline

# Of a line beside its trend: the label, the number, the blanks, the counts at the right.
_LABEL, _NUMBER, _COUNTS = 16, 7, 34
MIN_TREND = 8
TRAFFIC_LINES = 5


def traffic_lines(history: History, width: int, glyphs: Glyphs) -> list[RenderableType]:
    """TRAFFIC_LINES: four with a trend, then one of what caches saved."""
    has_counts = width >= _LABEL + _NUMBER + _COUNTS + MIN_TREND
    num_cells = max(width - _LABEL - _NUMBER - 4 - (_COUNTS + 2 if has_counts else 0), MIN_TREND)
    table = Table.grid(padding=(0, 1))
    for column in (_LABEL, _NUMBER, num_cells, _COUNTS)[: 4 if has_counts else 3]:
        table.add_column(width=column, no_wrap=True, overflow="ellipsis")
    table.columns[1].justify = "right"
    for row, counts in zip(_ROWS, _counts(history), strict=True):
        label, value, shown, highest = row
        last = history.last
        number = Text(shown(value(last)) if last is not None else "-", style="bold")
        trend = sparkline(history.trend(value, num_cells), glyphs, highest)
        cells = [Text(label), number, trend]
        table.add_row(*cells, *([counts] if has_counts else []))
    return [table, _cache_line(history)]


# A label, its value, how that is written, and the highest it can be.
_Row = tuple[str, Callable[[Interval], float], Callable[[float], str], float | None]
_ROWS: tuple[_Row, ...] = (
    ("prompt tokens/s", lambda each: each.per_s("prompt_tokens"), rate, None),
    ("output tokens/s", lambda each: each.per_s("completion_tokens"), rate, None),
    ("requests/s", lambda each: each.per_s("requests"), rate, None),
    ("KV blocks held", lambda each: each.held, lambda share: f"{share:.0%}", 1.0),
)


def _counts(history: History) -> list[Text]:
    """A text for the right end of each line."""
    assert history.latest is not None
    router = history.latest.router
    counters = router.counters
    texts = [
        Text(f"{count(router.running_requests)} running"),
        Text(f"{count(counters.completed)} completed"),
        Text(f"{count(counters.failed)} failed", style="red" if counters.failed else ""),
        Text(f"{count(_preempted(history))} preempted"),
    ]
    texts[0].append(f", {count(router.queued_prompt_tokens)} tokens queued")
    texts[1].append(f", {count(counters.cancelled)} cancelled")
    texts[2].append(f", {count(counters.refused)} refused", "red" if counters.refused else "")
    texts[3].append(f", {size(_bytes_per_s(history))}/s transferred")
    return texts


def _preempted(history: History) -> int:
    """Since the workers' start."""
    assert history.latest is not None
    return sum(each.counters.preemptions for each in history.latest.workers if each.counters)


def _bytes_per_s(history: History) -> float:
    """KV that decode workers received; the sender counts the same bytes."""
    if history.last is None or history.latest is None:
        return 0.0
    rates = history.last.workers
    receivers = [each.worker_id for each in history.latest.workers if each.role == "decode"]
    return sum(rates[name].bytes_per_s for name in receivers if name in rates)


def _cache_line(history: History) -> Text:
    """Where KV of prompts came from; the decode worker's share need not be transferred."""
    shares, is_recent = history.prompt_shares()
    on_prefill, on_decode = shares["cached_on_prefill_worker"], shares["cached_on_decode_worker"]
    line = Text("prompt tokens    ", no_wrap=True, overflow="ellipsis")
    line.append(f"{shares['cached_prompt_tokens']:.0%} cached", style="bold")
    line.append(f" (prefill {on_prefill:.0%}, decode {on_decode:.0%})")
    line.append(f", {shares['transferred_prompt_tokens']:.0%} transferred")
    return line if is_recent else line.append(", since start")
