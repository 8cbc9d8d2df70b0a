"""Tables and plots of validations and projections."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator.project import saturation
from simulator.validate import FIGURES, GOAL_PERCENT

Rows = list[dict[str, Any]]
WIDTH = 170
PROJECTED = [
    ("requests_per_s", "requests/s", "{:.1f}"),
    ("output_tokens_per_s", "tokens/s", "{:,.0f}"),
    ("ttft_p50_ms", "TTFT p50", "{:,.0f}"),
    ("ttft_p90_ms", "p90", "{:,.0f}"),
    ("itl_p50_ms", "ITL p50", "{:.1f}"),
    ("itl_p90_ms", "p90", "{:.1f}"),
    ("prefill_busy_percent", "P busy %", "{:.0f}"),
    ("decode_busy_percent", "D busy %", "{:.0f}"),
    ("hit_percent", "hit %", "{:.1f}"),
]
SHARED = [
    ("requests_per_s", "requests/s", "{:.1f}"),
    ("token_messages_per_s", "tokens/s", "{:,.0f}"),
    ("placement_us", "placement us", "{:,.0f}"),
    ("router_percent", "router core %", "{:.1f}"),
    ("redis_calls_per_s", "Redis calls/s", "{:,.0f}"),
    ("redis_keys_per_s", "keys/s", "{:,.0f}"),
    ("redis_fields_per_s", "fields/s", "{:,.0f}"),
    ("redis_percent", "Redis core %", "{:.1f}"),
    ("network_gb_per_s", "network GB/s", "{:.1f}"),
    ("link_percent", "busiest link %", "{:.1f}"),
]


def print_validation(rows: Rows) -> None:
    title = f"simulated / measured (error; the goal is {GOAL_PERCENT:.0f} %), times in ms"
    table = Table(title=title)
    for heading in ("run", *FIGURES, "CPU of others"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for row in rows:
        cells = []
        for figure in FIGURES:
            error = row["error_percent"][figure]
            style = "green" if abs(error) <= GOAL_PERCENT else "red"
            pair = f"{row['simulated'][figure]:.1f} / {row['measured'][figure]:.1f}"
            cells.append(f"{pair} [{style}]{error:+.1f} %[/]")
        table.add_row(row["name"], *cells, f"{100 * row['others_share']:.0f} %")
    console = Console(width=WIDTH)
    console.print(table)
    errors = [abs(row["error_percent"][figure]) for row in rows for figure in FIGURES]
    within = sum(error <= GOAL_PERCENT for error in errors)
    console.print(f"{within} of {len(errors)} figures within {GOAL_PERCENT:.0f} %")


def print_projection(rows: Rows) -> None:
    console = Console(width=WIDTH)
    for sweep in ("ratio", "hit rate", "load", "size"):
        table = Table(title=f"{sweep}, times in ms")
        for heading in ("model", "P", "D", "ceiling %", *(name for _, name, _ in PROJECTED)):
            table.add_column(heading, justify="right")
        for row in (row for row in rows if row["sweep"] == sweep):
            table.add_row(*_names(row), *(form.format(row[key]) for key, _, form in PROJECTED))
        console.print(table)
    table = Table(title="shared parts by size")
    for heading in ("model", "P", "D", "ceiling %", *(name for _, name, _ in SHARED)):
        table.add_column(heading, justify="right")
    largest = [row for row in rows if row["sweep"] == "size"]
    for row in largest:
        table.add_row(*_names(row), *(form.format(row[key]) for key, _, form in SHARED))
    console.print(table)
    for model in dict.fromkeys(row["model"] for row in largest):
        row = [row for row in largest if row["model"] == model][-1]
        console.print(f"{model}: {verdict(row)}")


def verdict(row: dict[str, Any]) -> str:
    """Which part is full first as workers are added."""
    limits = saturation(row)
    first = min(limits, key=lambda part: limits[part])
    told = ", ".join(f"{part} is full at {size:,.0f} workers" for part, size in limits.items())
    return f"{first} saturates first: {told}; the busiest link is {row['link_percent']:.1f} % full"


def draw_projection(path: Path, rows: Rows) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 4, figsize=(19, 4.2))
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        ratio = [row for row in mine if row["sweep"] == "ratio"]
        share = [row["num_prefills"] / row["num_workers"] for row in ratio]
        rate = [row["requests_per_s"] / row["num_workers"] for row in ratio]
        axes[0].plot(share, rate, marker="o", label=model)
        hits = [row for row in mine if row["sweep"] == "hit rate"]
        ceilings = [100 * row["hit_ceiling"] for row in hits]
        axes[1].plot(ceilings, [row["requests_per_s"] for row in hits], marker="o", label=model)
        axes[2].plot(ceilings, [row["hit_percent"] for row in hits], marker="o", label=model)
        sizes = [row for row in mine if row["sweep"] == "size"]
        numbers = [row["num_workers"] for row in sizes]
        for key, style in (("router_percent", "-"), ("redis_percent", "--"), ("link_percent", ":")):
            label = f"{model} {key.removesuffix('_percent')}"
            axes[3].plot(numbers, [row[key] for row in sizes], style, marker="o", label=label)
    axes[2].plot([0, 60], [0, 60], color="grey", linestyle=":", label="endless cache")
    axes[3].set_xscale("log", base=2)
    axes[3].set_yscale("log")
    axes[3].axhline(100, color="black", linewidth=0.8)
    titles = ("requests/s a worker", "requests/s", "blocks found, %", "one of each, % full")
    labels = ("share of prefill workers", "hit ceiling, %", "hit ceiling, %", "workers")
    for axis, title, label in zip(axes, titles, labels, strict=True):
        axis.set(title=title, xlabel=label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    _save(figure, path)


def draw_validation(path: Path, rows: Rows) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6))
    names = [row["name"] for row in rows]
    keys = ("output_tokens_per_s", "ttft_p50_ms", "itl_p50_ms")
    for axis, key in zip(axes, keys, strict=True):
        for offset, kind in ((-0.2, "simulated"), (0.2, "measured")):
            places = [index + offset for index in range(len(rows))]
            axis.bar(places, [row[kind][key] for row in rows], 0.4, label=kind)
        axis.set_xticks(range(len(rows)), names, rotation=60, ha="right", fontsize=7)
        axis.set_title(key)
        axis.margins(y=0.25)  # room for the legend
        axis.legend()
    _save(figure, path)


def _names(row: dict[str, Any]) -> list[str]:
    split = [str(row["num_prefills"]), str(row["num_decodes"])]
    return [row["model"], *split, f"{100 * row['hit_ceiling']:.1f}"]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")
