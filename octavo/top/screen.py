"""The whole picture: a title, the last minute, the workers, the requests, as large as the terminal.

octavo top  MODEL at ADDRESS ...                                   title
── last minute ──   rates with their trends, counts, cache hits     octavo/top/traffic.py
── workers ──       a row each                                      octavo/top/workers.py
── requests ──      those that run, the oldest first, as room is    octavo/top/requests.py
"""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from octavo.top.history import History
from octavo.top.marks import Glyphs, age
from octavo.top.requests import request_rows
from octavo.top.snapshot import Snapshot, State
from octavo.top.traffic import TRAFFIC_LINES, traffic_lines
from octavo.top.workers import worker_lines

MIN_ROWS = 3  # of workers, and of requests: a head, one of them, how many more


@dataclass(frozen=True, slots=True)
class Canvas:
    """What is drawn on."""

    width: int
    height: int | None  # None: as many lines as it takes
    glyphs: Glyphs


def draw(history: History, canvas: Canvas, address: str, trouble: str = "") -> RenderableType:
    """At least one snapshot is there; trouble: why the latest is an old one."""
    snapshot = history.latest
    assert snapshot is not None
    top: list[RenderableType] = [title(snapshot, canvas, address)]
    if trouble:
        top.append(Text(trouble, style="bold red", no_wrap=True, overflow="ellipsis"))
    top.append(heading("last minute", canvas))
    left = None if canvas.height is None else canvas.height - len(top) - TRAFFIC_LINES - 2
    top += traffic_lines(history, canvas.width, canvas.glyphs)
    running = snapshot.router.running_requests
    most = None
    if left is not None:  # requests may have a third of it, and what workers leave over
        most = max(left - min(running + 1, max(left // 3, MIN_ROWS)), MIN_ROWS)
    workers, num_lines = worker_lines(history, canvas.width, most, canvas.glyphs)
    num_workers = len(snapshot.workers)
    top += [heading(_plural(num_workers, "worker"), canvas), workers]
    rows = None if left is None else max(left - num_lines, 0)
    top.append(heading(_plural(running, "running request") + " of this router", canvas))
    if running and (rows is None or rows >= 2):
        top.append(request_rows(snapshot, canvas.width, rows, canvas.glyphs))
    return Group(*top)


def title(snapshot: Snapshot, canvas: Canvas, address: str) -> Text:
    """Who answers, and whether it can serve; the end of the left part gives way."""
    router = snapshot.router
    right = Text(f"  up {age(router.uptime_s)}  ").append(*_readiness(snapshot))
    left = Text("octavo ", style="bold").append(router.model, style="cyan")
    left.append(f"  {address}", style="not bold")
    kinds = {
        f"{each.dtype}{' ' + each.quantization if each.quantization else ''}"
        for each in snapshot.workers
        if each.dtype
    }
    if kinds:
        left.append("  " + ", ".join(sorted(kinds)), style="not bold dim")
    left.truncate(max(canvas.width - len(right), 0), overflow="ellipsis", pad=True)
    return left.append_text(right)


def heading(text: str, canvas: Canvas) -> Text:
    line = canvas.glyphs.line
    return (
        Text(f"{line * 2} ", style="dim")
        .append(text, style="bold not dim")
        .append(f" {line * max(canvas.width - len(text) - 4, 0)}")
    )


def _readiness(snapshot: Snapshot) -> tuple[str, str]:
    if not snapshot.router.is_ready:
        return "not ready", "bold red"
    troubled = sum(each.state is not State.READY for each in snapshot.workers)
    return (f"{troubled} not ready", "bold magenta") if troubled else ("ready", "bold green")


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
