"""Tables, plots and files of the benchmarks: medians over rounds, ratios round by round."""

import json
import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = [
    ("output_tokens_per_s", "tokens/s"),
    ("ttft_p50_ms", "TTFT p50"),
    ("ttft_p90_ms", "p90"),
    ("ttft_p99_ms", "p99"),
    ("itl_p50_ms", "ITL p50"),
    ("itl_p90_ms", "p90"),
    ("itl_p99_ms", "p99"),
    ("tpot_p50_ms", "TPOT p50"),
]
Rows = list[dict[str, Any]]


def machine() -> str:
    """Processor and number of cores, for the title of a table."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def pick(rows: Rows, engine: str, level: int, figure: str) -> list[float]:
    """One figure of one engine at one concurrency, by round."""
    chosen = [r for r in rows if r["engine"] == engine and r["concurrency"] == level]
    return [row[figure] for row in sorted(chosen, key=lambda r: r["round"]) if figure in row]


def engines_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["engine"] for row in rows))


def levels_of(rows: Rows) -> list[int]:
    return sorted({row["concurrency"] for row in rows})


def print_table(title: str, rows: Rows) -> None:
    """Medians over rounds; the last column is Octavo's throughput over the peer's, min-max."""
    table = Table(title=title + "; times in ms, medians over rounds")
    table.add_column("at once", justify="right")
    table.add_column("engine")
    for _, heading in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("octavo / it", justify="right")
    for level in levels_of(rows):
        ours = pick(rows, "octavo", level, "output_tokens_per_s")
        for engine in engines_of(rows):
            cells = []
            for figure, _ in COLUMNS:
                values = pick(rows, engine, level, figure)
                cells.append(f"{median(values):.1f}" if values else "-")
            theirs = pick(rows, engine, level, "output_tokens_per_s")
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            table.add_row(str(level), engine, *cells, "" if engine == "octavo" else ratio)
        table.add_section()
    Console(width=160).print(table)


def draw(path: Path, title: str, rows: Rows) -> None:
    """Throughput, TTFT and ITL by concurrency, one line an engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2))
    panels = [
        ("output_tokens_per_s", "output tokens / s"),
        ("ttft_p50_ms", "TTFT p50, ms"),
        ("itl_p50_ms", "ITL p50, ms"),
    ]
    for axis, (key, label) in zip(axes, panels, strict=True):
        for engine in engines_of(rows):
            points = [(n, pick(rows, engine, n, key)) for n in levels_of(rows)]
            known = [(n, median(values)) for n, values in points if values]
            if known:
                axis.plot(*zip(*known, strict=True), marker="o", label=engine)
        axis.set_xscale("log", base=2)
        axis.set_xticks(levels_of(rows), [str(n) for n in levels_of(rows)])
        axis.set_xlabel("requests at once")
        axis.set_title(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def write_json(path: Path, title: str, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": title, "rows": rows}, indent=1) + "\n")
    print(f"figures: {path}")
