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

    @property
    def goal(self) -> Goal:
        return GOALS[self.key]

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


def figure_of(key: str, values: Sequence[float], detail: str = "") -> Figure:
    """A figure from one value a round."""
    return Figure(key, median(values), *bootstrap_interval(values), len(values), detail)


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
    table.add_column("from")
    for heading in ("measured", "95 % interval", "floor", "aim", "rounds"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for figure in figures:
        goal, verdict = figure.goal, figure.verdict
        sign = "<= " if goal.less_is_better else ">= "
        table.add_row(
            goal.text,
            figure.detail,
            show(figure.value, goal.unit),
            f"{show(figure.low, 'x')} - {show(figure.high, 'x')}",
            sign + show(goal.floor, "x"),
            sign + show(goal.aim, "x"),
            str(figure.rounds),
            f"[{COLOURS[verdict]}]{'below the floor' if verdict == 'below' else verdict}[/]",
        )
    Console(width=170).print(table)


def draw_figures(axis: Any, figures: Sequence[Figure]) -> None:
    """Bars of measured over floor, right is better; a line at the floor, a mark at each aim."""
    for row, figure in enumerate(figures):
        goal = figure.goal
        bounds = [_over_floor(goal, v) for v in (figure.low, figure.value, figure.high)]
        low, value, high = min(bounds), bounds[1], max(bounds)
        colour = {"aim": "tab:green", "floor": "tab:olive", "below": "tab:red"}[figure.verdict]
        axis.barh(row, value, color=colour, height=0.6, alpha=0.8)
        axis.plot([low, high], [row, row], color="black", linewidth=1.2)
        axis.plot(_over_floor(goal, goal.aim), row, marker="D", color="tab:blue", markersize=5)
        axis.text(
            max(high, _over_floor(goal, goal.aim)) + 0.08,
            row,
            f"{show(figure.value, goal.unit)}  (floor {show(goal.floor, 'x')},"
            f" aim {show(goal.aim, 'x')})",
            va="center",
            fontsize=8,
        )
    axis.axvline(1, color="black", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(figures)), [figure.goal.text for figure in figures], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, axis.get_xlim()[1] * 1.3)
    axis.set_xlabel("measured over floor (dashed: floor; diamond: aim; right is better)")


def _over_floor(goal: Goal, value: float) -> float:
    if not goal.less_is_better:
        return value / goal.floor
    return goal.floor / max(value, goal.floor / 20)  # far better than asked stays on the page


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
