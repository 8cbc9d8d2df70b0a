"""A row for each worker; those in trouble stand first where there is no room for all."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octavo.top.history import History, WorkerRates
from octavo.top.marks import Glyphs, blocks_bar, count, rate, short_time, shorten
from octavo.top.snapshot import State, WorkerState

STYLES = {
    State.READY: "green",
    State.DRAINING: "magenta",
    State.STUCK: "bold red",
    State.UNREACHABLE: "bold red",
    State.UNKNOWN: "",
}
SHORT_DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
}
MAX_BAR = 48


@dataclass(frozen=True, slots=True)
class Widths:
    """Of the columns whose width depends on the terminal; 0: not shown."""

    name: int
    address: int
    dtype: int
    busy: int
    bar: int

    @classmethod
    def of(cls, width: int, workers: list[WorkerState]) -> "Widths":
        """Names first, then the pool's bar; address, dtype and busy where there is room."""
        wanted = max((len(each.name) for each in workers), default=6)
        if width < 72:
            return cls(max(min(wanted, width - 37), 6), 0, 0, 0, 0)
        spare = width - 57
        name = min(wanted, 14 if width < 100 else 34)
        spare -= name
        busy = 5 if spare >= 30 else 0
        dtype = 9 if spare >= 45 else 0
        spare -= busy + dtype + bool(busy) + bool(dtype)
        longest = max((len(each.address) for each in workers), default=0)
        address = min(longest, spare - 25) if spare >= 40 else 0
        spare -= address + bool(address)
        return cls(name, address, dtype, busy, max(min(spare, MAX_BAR), 4))


def worker_lines(
    history: History, width: int, most: int | None, glyphs: Glyphs
) -> tuple[RenderableType, int]:
    """A table of at most so many lines, problems below it included, and how many it has."""
    assert history.latest is not None
    workers = list(history.latest.workers)
    if not workers:
        hint = "none is known: start prefill and decode workers that this router can find"
        return Text(hint, style="bold red", no_wrap=True, overflow="ellipsis"), 1
    problems = [each for each in workers if each.problem]
    num_problems = len(problems) if most is None else min(len(problems), 2, max(most - 3, 0))
    room = len(workers) if most is None else max(most - 1 - num_problems, 1)
    shown, hidden = _choose(workers, room)
    widths = Widths.of(width, shown)
    lines: list[RenderableType] = [_table(shown, history, widths, glyphs)]
    for each in problems[:num_problems]:
        # gRPC says how it tried before it says what went wrong.
        why = each.problem.rpartition("last error: ")[2]
        text = f"{shorten(each.name, 30, glyphs)}: {why}"
        lines.append(Text(text, style="red", no_wrap=True, overflow="ellipsis"))
    if hidden:
        lines.append(_hidden_line(hidden))
    return Group(*lines), 1 + len(shown) + num_problems + bool(hidden)


def _choose(workers: list[WorkerState], room: int) -> tuple[list[WorkerState], list[WorkerState]]:
    """Those to show, in their order, and the others, who need a line of their own."""
    if len(workers) <= room:
        return workers, []
    by_need = sorted(workers, key=lambda each: (each.state is State.READY, -_load(each)))
    chosen = {each.name for each in by_need[: max(room - 1, 0)]}
    shown = [each for each in workers if each.name in chosen]
    return shown, [each for each in workers if each.name not in chosen]


def _load(worker: WorkerState) -> int:
    return worker.running_sequences + worker.waiting_sequences


def _hidden_line(hidden: list[WorkerState]) -> Text:
    counts = [
        f"{number} {state.value}"
        for state in State
        if (number := sum(each.state is state for each in hidden))
    ]
    return Text(f"and {len(hidden)} more: {', '.join(counts)}", style="dim")


def _table(workers: list[WorkerState], history: History, widths: Widths, glyphs: Glyphs) -> Table:
    table = Table.grid(padding=(0, 1))
    columns = [("role", 7), ("worker", widths.name), ("address", widths.address)]
    columns += [("dtype", widths.dtype), ("state", 11)]
    numbers = [("run", 4), ("wait", 4), ("step", 7), ("busy", widths.busy), ("tok/s", 6)]
    columns = [each for each in columns if each[1]]
    numbers = [each for each in numbers if each[1]]
    for _, width in columns:
        table.add_column(width=width, no_wrap=True, overflow="ellipsis")
    for _, width in numbers:
        table.add_column(width=width, no_wrap=True, justify="right")
    head = [Text(name, style="dim") for name, _ in columns + numbers]
    if widths.bar:
        table.add_column(width=widths.bar, no_wrap=True)
        table.add_column(width=4, no_wrap=True, justify="right")
        head += [_legend(widths.bar, glyphs), Text("held", style="dim")]
    table.add_row(*head)
    rates = history.last.workers if history.last is not None else {}
    for worker in workers:
        table.add_row(*_cells(worker, rates.get(worker.worker_id), widths, glyphs))
    return table


def _cells(
    worker: WorkerState, rates: WorkerRates | None, widths: Widths, glyphs: Glyphs
) -> list[Text]:
    style = STYLES[worker.state]
    cells = [Text(worker.role or "?"), Text(shorten(worker.name, widths.name, glyphs))]
    if widths.address:
        cells.append(Text(shorten(worker.address, widths.address, glyphs), style="dim"))
    if widths.dtype:
        kind = SHORT_DTYPES.get(worker.dtype, worker.dtype)
        cells.append(Text(f"{kind} {worker.quantization}".strip()))
    cells.append(Text(worker.state.value, style=style))
    if worker.state is State.UNREACHABLE:
        return cells
    cells += [Text(count(worker.running_sequences)), Text(count(worker.waiting_sequences))]
    cells.append(Text(short_time(rates.step_s) if rates else "-"))
    if widths.busy:
        cells.append(Text(f"{rates.busy:.0%}" if rates else "-"))
    cells.append(Text(rate(rates.tokens_per_s) if rates else "-"))
    if widths.bar:
        blocks = worker.blocks
        cells.append(blocks_bar(blocks, widths.bar, glyphs))
        cells.append(Text(f"{blocks.held / blocks.total:.0%}" if blocks.total else "-"))
    return cells


def _legend(width: int, glyphs: Glyphs) -> Text:
    """What the bar's parts mean, as far as there is room."""
    text = Text("KV blocks" if width >= 9 else "KV", style="dim")
    parts = ((glyphs.held, "held", "cyan"), (glyphs.cached, "cached", "green"))
    for glyph, name, style in (*parts, (glyphs.free, "free", "dim")):
        if len(text) + len(name) + 3 <= width:
            text.append(f" {glyph}", style=f"not dim {style}").append(f" {name}")
    return text
