"""A measured figure beside its floor and aim: interval, table, plot and file.

A ratio is formed round by round, since a round's engines share the machine's mood; its value is the
median, its interval the bootstrap's 95 % of that median.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from goals import GOALS, Goal
from report import machine
from roofs import Roofs, print_roofs

RESAMPLES = 10_000
SPAN = 10.0  # a plot shows a tenth of the floor to ten times it
VERDICTS = {"aim": "pass, at aim", "floor": "pass", "below": "FAIL"}
COLOURS = {"aim": "green", "floor": "yellow", "below": "red"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the goal table as measured."""

    key: str  # of GOALS
    value: float
    low: float
    high: float
    rounds: int
    detail: str = ""  # what it was formed from, such as "310 / 254 tokens/s"
    variant: str = ""  # where one goal is measured in several ways, such as "int8"

    @property
    def goal(self) -> Goal:
        return GOALS[self.key]

    @property
    def text(self) -> str:
        return f"{self.goal.text}, {self.variant}" if self.variant else self.goal.text

    @property
    def verdict(self) -> str:
        return self.goal.verdict(self.value)


@dataclass(frozen=True, slots=True)
class Result:
    """What one command measured: figures, and the rows and roofs behind them."""

    title: str
    figures: list[Figure]
    rows: list[dict[str, Any]] = field(default_factory=list)
    roofs: list[Roofs] = field(default_factory=list)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of resampled rounds."""
    samples = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(samples), size=(RESAMPLES, len(samples)))
    low, high = np.percentile(np.median(samples[picks], axis=1), [2.5, 97.5])
    return float(low), float(high)


def figure_of(key: str, values: Sequence[float], detail: str = "", variant: str = "") -> Figure:
    """A figure from one value a round."""
    return Figure(key, median(values), *bootstrap_interval(values), len(values), detail, variant)


def ratio_of(key: str, ours: Sequence[float], theirs: Sequence[float], unit: str) -> Figure:
    """Ours over theirs, round by round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return figure_of(key, ratios, f"{median(ours):.4g} / {median(theirs):.4g} {unit}")


def show(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return number if unit == "x" else f"{number} {unit}"


def print_figures(title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title)
    table.add_column("figure", no_wrap=True)
    table.add_column("from", no_wrap=True)
    for heading in ("measured", "95 %", "floor", "aim", "rounds"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for figure in figures:
        goal, verdict = figure.goal, figure.verdict
        sign = "<= " if goal.less_is_better else ">= "
        table.add_row(
            figure.text,
            figure.detail,
            show(figure.value, goal.unit),
            f"{show(figure.low, 'x')} - {show(figure.high, 'x')}",
            sign + show(goal.floor, "x"),
            sign + show(goal.aim, "x"),
            str(figure.rounds),
            f"[{COLOURS[verdict]}]{VERDICTS[verdict]}[/]",
        )
    Console(width=180).print(table)


def draw_figures(axis: Any, figures: Sequence[Figure]) -> None:
    """Bars from the floor to the measured value, right is better; a mark at each aim."""
    for row, figure in enumerate(figures):
        goal = figure.goal
        bounds = [_over_floor(goal, v) for v in (figure.low, figure.value, figure.high)]
        colour = {"aim": "tab:green", "floor": "tab:olive", "below": "tab:red"}[figure.verdict]
        axis.barh(row, bounds[1] - 1, left=1, color=colour, height=0.6, alpha=0.8)
        axis.plot([min(bounds), max(bounds)], [row, row], color="black", linewidth=1.2)
        axis.plot(bounds[1], row, marker="|", color="black", markersize=9)
        axis.plot(_over_floor(goal, goal.aim), row, marker="D", color="tab:blue", markersize=5)
        text = f"{show(figure.value, goal.unit)}  (floor {show(goal.floor, 'x')},"
        axis.text(SPAN * 1.08, row, f"{text} aim {show(goal.aim, 'x')})", va="center", fontsize=8)
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    axis.set_xscale("log")
    axis.set_xlim(1 / SPAN, SPAN)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.axvline(1, color="black", linestyle="--", linewidth=1)
    axis.grid(axis="x", alpha=0.3)
    axis.set_yticks(range(len(figures)), [figure.text for figure in figures], fontsize=8)
    axis.set_ylim(len(figures) - 0.4, -0.6)
    axis.set_xlabel(
        "measured over floor (dashed: floor; diamond: aim; line: 95 %; right is better)"
    )


def _over_floor(goal: Goal, value: float) -> float:
    """Kept on the page, however far from the floor."""
    least = goal.floor / SPAN
    share = goal.floor / max(value, least) if goal.less_is_better else value / goal.floor
    return min(max(share, 1 / SPAN), SPAN)


def save_plot(path: Path, title: str, figures: Sequence[Figure]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    plot, axis = pyplot.subplots(figsize=(11, 1.6 + 0.42 * max(3, len(figures))))
    draw_figures(axis, figures)
    axis.set_title(title, fontsize=9)
    plot.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.savefig(path, dpi=110)
    pyplot.close(plot)
    print(f"plot: {path}")


def save_json(path: Path, result: Result) -> None:
    """Figures with their floors and aims, raw rows, roofs, machine and command."""
    figures = [
        asdict(figure) | asdict(figure.goal) | {"verdict": figure.verdict}
        for figure in result.figures
    ]
    content = {
        "title": result.title,
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "figures": figures,
        "rows": result.rows,
        "roofs": [asdict(roofs) for roofs in result.roofs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"figures: {path}")


def finish(result: Result, plot: Path | None, json_file: Path | None) -> None:
    """Print the roofs and the table, draw the plot, write the file."""
    if result.roofs:
        print_roofs(result.roofs)
    if result.figures:
        print_figures(result.title, result.figures)
        if plot is not None:
            save_plot(plot, result.title, result.figures)
    if json_file is not None:
        save_json(json_file, result)
