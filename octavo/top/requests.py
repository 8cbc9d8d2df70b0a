"""A row for each running request: its id, how long it runs, how far it came; never its text."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octavo.top.marks import Glyphs, age, count, shorten
from octavo.top.snapshot import RunningRequest, Snapshot


def request_rows(
    snapshot: Snapshot, width: int, most: int | None, glyphs: Glyphs
) -> RenderableType:
    """The oldest first, in at most so many lines; `running_requests` is not 0."""
    requests = snapshot.requests
    num_running = snapshot.router.running_requests
    most = num_running + 1 if most is None else most
    fits = num_running <= most - 1
    shown = requests[: most - 1 if fits else max(most - 2, 0)]
    names = [each.prefill_worker for each in shown] + [each.decode_worker for each in shown]
    worker = min(max(map(len, names), default=0), max((width - 56) // 2, 8), 34)
    has_workers = width >= 72
    room = width - 33 - has_workers * 2 * (worker + 1)
    name = min(max((len(each.request_id) for each in shown), default=7), room)
    table = Table.grid(padding=(0, 1))
    columns = [("request", name), ("age", 8), ("in", 6), ("out", 6), ("phase", 8)]
    columns += [("prefill", worker), ("decode", worker)] * has_workers
    for index, (_, column) in enumerate(columns):
        is_number = 1 <= index <= 3
        table.add_column(width=column, no_wrap=True, justify="right" if is_number else "left")
    table.add_row(*(Text(head, style="dim") for head, _ in columns))
    for each in shown:
        chosen = (each.prefill_worker, each.decode_worker)
        workers = [Text(shorten(one, worker, glyphs)) for one in chosen * has_workers]
        table.add_row(*_cells(each, name, glyphs), *workers)
    if len(shown) == num_running:
        return table
    return Group(table, Text(f"and {num_running - len(shown)} more", style="dim"))


def _cells(request: RunningRequest, name: int, glyphs: Glyphs) -> list[Text]:
    return [
        Text(shorten(request.request_id, name, glyphs)),
        Text(age(request.age_s)),
        Text(count(request.prompt_tokens)),
        Text(count(request.completion_tokens)),
        Text(phase(request), style="" if request.completion_tokens else "magenta"),
    ]


def phase(request: RunningRequest) -> str:
    """Where a request stands."""
    if request.completion_tokens:
        return "decoding"
    if request.prefill_worker or request.decode_worker:
        return "prefill"
    return "queued"
