"""Small pictures made of characters, and numbers short enough for a column.

bar         ████▒▒▒░░░░░   held, cached, free
sparkline   ▁▂▄▇█▆▃▁       a minute, the newest at the right
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from octavo.top.snapshot import Blocks


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What the terminal can show."""

    held: str
    cached: str
    free: str
    levels: str  # of a sparkline, the lowest first
    line: str
    ellipsis: str


UNICODE = Glyphs("█", "▒", "░", "▁▂▃▄▅▆▇█", "─", "…")
ASCII = Glyphs("#", "+", ".", "_.-=+*%#", "-", "~")

# The terminal's own colours: whoever chose its background chose them to be read on it.
HELD, CACHED, FREE, TREND = "cyan", "green", "dim", "cyan"


def blocks_bar(blocks: Blocks, width: int, glyphs: Glyphs) -> Text:
    """A pool in so many cells; whatever is not empty shows."""
    if not blocks.total:
        return Text(" " * width)
    held = _cells(blocks.held, blocks.total, width)
    cached = min(_cells(blocks.cached, blocks.total, width), width - held)
    text = Text(glyphs.held * held, style=HELD)
    text.append(glyphs.cached * cached, style=CACHED)
    return text.append(glyphs.free * (width - held - cached), style=FREE)


def _cells(count: int, total: int, width: int) -> int:
    return min(max(round(count / total * width), 1), width) if count else 0


def sparkline(values: Sequence[float | None], glyphs: Glyphs, highest: float | None = None) -> Text:
    """One character a value, scaled to the highest, by default of these; None is a blank."""
    top = highest or max((value for value in values if value is not None), default=0.0)
    levels = glyphs.levels
    shares = (None if each is None else min(each / top, 1.0) if top else 0.0 for each in values)
    text = "".join(
        " " if share is None else levels[round(share * (len(levels) - 1))] for share in shares
    )
    return Text(text, style=TREND)


def shorten(text: str, width: int, glyphs: Glyphs) -> str:
    """At most so wide; both ends stay, since names of pods differ at their ends."""
    if len(text) <= width:
        return text
    kept = width - 1
    head = kept // 2
    return text[:head] + glyphs.ellipsis + text[len(text) - (kept - head) :]


def count(value: float) -> str:
    """5 characters or little more: 7, 1,234, 56.1k, 3.4M."""
    if value < 9999.5:
        return f"{value:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if value < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value / 1e12:.3g}T"


def rate(value: float) -> str:
    """With one decimal where that says anything."""
    return f"{value:.1f}" if 0 < value < 9.95 else count(value)


def short_time(seconds: float | None) -> str:
    """Of a step: 31 ms, 1.25 s."""
    if seconds is None:
        return "-"
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def age(seconds: float) -> str:
    """Of a request, or a process: 12 s, 3:04, 1:02:03, 4 d 5 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(num_bytes: float) -> str:
    """In bytes and their multiples: 18.8 MB."""
    number = count(num_bytes)
    return f"{number} B" if number[-1].isdigit() else f"{number[:-1]} {number[-1]}B"
