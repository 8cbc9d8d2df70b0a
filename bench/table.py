"""All figures of all benchmarks as one table and one plot, from their JSON files.

python bench/table.py [FILES] [--markdown FILE] [--plot FILE]      # bench/results/*.json
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, print_figures, save_plot, show
from goals import GOALS

RESULTS = Path("bench/results")


@dataclass(frozen=True, slots=True)
class Line:
    """A figure and where it comes from."""

    figure: Figure
    machine: str
    command: str


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", help=f"default: {RESULTS}/*.json")
    parser.add_argument("--markdown", type=Path, default=RESULTS / "table.md")
    parser.add_argument("--plot", type=Path, default=RESULTS / "overview.png")
    return parser.parse_args()


def read_lines(files: list[Path]) -> list[Line]:
    """In the order of GOALS; of a figure in several files the newest file's counts."""
    found: dict[tuple[str, str], Line] = {}
    for path in sorted(files, key=lambda file: file.stat().st_mtime):
        content = json.loads(path.read_text())
        entries = content.get("figures", []) if isinstance(content, dict) else []
        for entry in entries:
            if isinstance(entry, dict) and entry.get("key") in GOALS:
                names = ("key", "value", "low", "high", "rounds", "detail")
                values = {name: entry[name] for name in names}
                figure = Figure(**values, variant=entry.get("variant", ""))
                found[figure.key, figure.variant] = Line(
                    figure, content["machine"], content["command"]
                )
    return [line for key in GOALS for line in found.values() if line.figure.key == key]


def markdown(lines: list[Line]) -> str:
    """The table for the README."""
    rows = [
        "| figure | floor | aim | measured | 95 % interval | from | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        figure, goal = line.figure, line.figure.goal
        sign = "≤ " if goal.less_is_better else "≥ "
        mark = {"aim": "**", "floor": "", "below": "*"}[figure.verdict]
        cells: list[Any] = [
            figure.text,
            sign + show(goal.floor, goal.unit),
            sign + show(goal.aim, goal.unit),
            mark + show(figure.value, goal.unit) + mark,
            f"{show(figure.low, 'x')} - {show(figure.high, 'x')}",
            figure.detail,
            f"`{line.command}`",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    machines = "; ".join(dict.fromkeys(line.machine for line in lines))
    rows += ["", f"Bold: the aim is reached; italic: below the floor. Machine: {machines}."]
    return "\n".join(rows) + "\n"


def main() -> None:
    args = parse_arguments()
    lines = read_lines(args.files or sorted(RESULTS.glob("*.json")))
    if not lines:
        raise SystemExit("no figures: run the benchmarks with --json first")
    figures = [line.figure for line in lines]
    reached = sum(figure.verdict != "below" for figure in figures)
    aims = sum(figure.verdict == "aim" for figure in figures)
    title = f"{reached} of {len(figures)} figures at their floor, {aims} at their aim"
    title += f"; {len(GOALS) - len({figure.key for figure in figures})} not measured"
    print_figures(f"{title}; {lines[0].machine}", figures)
    args.markdown.parent.mkdir(parents=True, exist_ok=True)
    args.markdown.write_text(markdown(lines))
    print(f"table: {args.markdown}")
    save_plot(args.plot, f"{title}\n{lines[0].machine}", figures)


if __name__ == "__main__":
    main()
