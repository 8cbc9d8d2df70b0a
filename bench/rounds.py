"""Alternating rounds: every engine runs every case once a round, in all orders in turn.

    round -1 (warms up, not counted), 0, 1, ...
      case (8 requests at once)
        wait until all engines sleep -> roofs -> engine A -> engine B -> ...

A case of a round whose roofs are far below the run's best is marked and left out of all figures.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median
from typing import Any, Protocol

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from figures import Figure, ratio_of
from roofs import RoofProbe, Roofs, usable_rounds

# vLLM looks for work for a second after its last, OpenMP threads for 0.2 s, before they sleep.
SETTLE_S = 1.5
IDLE_SHARE = 0.05  # of a core; an engine that takes more while others are measured is named
THROUGHPUT = "output_tokens_per_s"
Rows = list[dict[str, Any]]


class Engine(Protocol):
    """What is measured."""

    name: str

    @property
    def cpu_s(self) -> float: ...
    async def ready(self) -> None: ...
    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Case:
    """The same requests for several engines."""

    name: str
    concurrency: int
    engines: Sequence[Engine]
    prompts: Callable[[int], list[list[int]]]  # by round
    max_tokens: int
    rounds: int | None = None  # only in so many rounds, where it takes long


@dataclass(frozen=True, slots=True)
class Measured:
    """Every row of every counted round, and the roofs measured before each case."""

    rows: Rows
    roofs: list[Roofs]

    @property
    def usable(self) -> Rows:
        return [row for row in self.rows if not row["disturbed"]]


async def run_rounds(
    engines: Sequence[Engine], cases: Sequence[Case], rounds: int, probe: RoofProbe
) -> Measured:
    """Start nothing and end nothing: wait until all are ready, measure, mark disturbed rounds."""
    rows: Rows = []
    roofs: list[Roofs] = []
    await asyncio.gather(*(engine.ready() for engine in engines))
    with Progress() as progress:
        turns = [
            (number, case)
            for number in range(-1, rounds)
            for case in cases
            if case.rounds is None or number < case.rounds
        ]
        task = progress.add_task("", total=sum(len(case.engines) for _, case in turns))
        for number, case in turns:
            await asyncio.sleep(SETTLE_S)
            place = f"round {number}, {case.name}"
            progress.update(task, description=f"{place}, roofs")
            roofs.append(await asyncio.to_thread(probe.measure, place))
            for engine in _order(case.engines, number):
                progress.update(task, description=f"{place}, {engine.name}")
                row = await measure_one(case, engine, engines, number)
                rows.append(row | {"roof": len(roofs) - 1})
                progress.advance(task)
    usable = usable_rounds(roofs)
    for row in rows:
        row["disturbed"] = not usable[row["roof"]]
    return Measured([row for row in rows if row["round"] >= 0], roofs)


def _order(engines: Sequence[Engine], number: int) -> Sequence[Engine]:
    """All orders in turn, each and its reverse: the first after the roofs is a little slower."""
    places = range(len(engines))
    orders = [order for order in permutations(places) if order[0] <= order[-1]]
    order = orders[number // 2 % len(orders)]
    return [engines[place] for place in (order if number % 2 == 0 else order[::-1])]


async def measure_one(
    case: Case, engine: Engine, engines: Sequence[Engine], number: int
) -> dict[str, Any]:
    """One engine's turn, and the share of a core that the sleeping others took meanwhile."""
    await asyncio.sleep(SETTLE_S)
    prompts = case.prompts(number)
    others = [other for other in engines if other is not engine]
    before, begin = [other.cpu_s for other in others], time.perf_counter()
    figures = await engine.measure(prompts, case.concurrency, case.max_tokens)
    wall = time.perf_counter() - begin
    shares = {
        other.name: (other.cpu_s - cpu_s) / wall
        for other, cpu_s in zip(others, before, strict=True)
    }
    place = {"engine": engine.name, "case": case.name, "concurrency": case.concurrency}
    idle = {"idle_cores": {name: share for name, share in shares.items() if share > IDLE_SHARE}}
    return place | {"round": number} | figures | idle


def pick(rows: Rows, case: str, engine: str, figure: str = THROUGHPUT) -> list[float]:
    """One figure of one engine in one case, by round."""
    chosen = [row for row in rows if row["case"] == case and row["engine"] == engine]
    return [row[figure] for row in sorted(chosen, key=lambda r: r["round"]) if figure in row]


def over_best(key: str, rows: Rows, case: str, ours: str, peers: Sequence[str]) -> Figure | None:
    """Our throughput over the faster peer's; None without a pair of usable rounds."""
    mine = pick(rows, case, ours)
    theirs = {peer: pick(rows, case, peer) for peer in peers}
    measured = {peer: values for peer, values in theirs.items() if values}
    if not mine or not measured:
        return None
    best = max(measured, key=lambda peer: median(measured[peer]))
    return ratio_of(key, mine, measured[best], f"tokens/s, {best}")


def print_rows(title: str, rows: Rows, columns: Sequence[tuple[str, str]]) -> None:
    """Medians over the usable rounds, a line for each case and engine."""
    table = Table(title=title)
    table.add_column("case")
    table.add_column("engine")
    for _, heading in columns:
        table.add_column(heading, justify="right")
    for case in dict.fromkeys(row["case"] for row in rows):
        for engine in dict.fromkeys(row["engine"] for row in rows if row["case"] == case):
            by_column = [pick(rows, case, engine, name) for name, _ in columns]
            cells = [f"{median(values):.1f}" if values else "-" for values in by_column]
            table.add_row(case, engine, *cells)
        table.add_section()
    Console(width=150).print(table)


def draw_rows(axis: Any, rows: Rows) -> None:
    """Throughput as bars, a group for each case; lines from the least to the most of the rounds."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    width = 0.8 / max(1, len(engines))
    for number, engine in enumerate(engines):
        for place, case in enumerate(cases):
            values = pick(rows, case, engine)
            if not values:
                continue
            at, middle = place + (number - (len(engines) - 1) / 2) * width, median(values)
            axis.bar(at, middle, width, color=f"C{number}", label=engine)
            axis.plot([at, at], [min(values), max(values)], color="black", linewidth=1)
            axis.text(at, max(values), f" {middle:.0f}", ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(cases)), [case.replace(", ", ",\n") for case in cases], fontsize=8)
    axis.set_ylabel("output tokens / s")
    axis.margins(y=0.08)
    named = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    axis.legend(named.values(), named.keys(), fontsize=8)


def print_awake(rows: Rows) -> None:
    """Name the engines that took CPU time while another was measured."""
    worst: dict[str, float] = {}
    for row in rows:
        for name, share in row["idle_cores"].items():
            worst[name] = max(worst.get(name, 0.0), share)
    for name, share in worst.items():
        print(f"note: {name} took up to {share:.0%} of a core while others were measured")
