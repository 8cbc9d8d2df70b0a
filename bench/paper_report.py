"""Tables and plot of bench/paper.py: the paper's figures stand beside ours."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paper_allocator import Use
from paper_kernels import KNOWN_TOKENS

PAPER_UTILISATION = {"paged, block 16": 96.3, "exact": 38.2, "power of two": 26.8, "longest": 20.4}
PAPER_SAMPLES = {"ShareGPT-like": "16.2 to 30.5", "Alpaca-like": "6.1 to 9.8"}
PAPER_BEAMS = {"ShareGPT-like": "44.3 to 66.3", "Alpaca-like": "37.6 to 55.2"}
PAPER_CONCURRENCY = {"paged, block 16": 30.42, "exact": 13.62, "longest": 7.00}
Figures = dict[str, Any]


def show(figures: Figures) -> None:
    console = Console(width=120)
    for workload, policies in figures["policies"].items():
        console.print(policy_table(workload, policies))
    console.print(block_table(figures))
    console.print(kernel_table(figures["kernel"]))
    console.print(preemption_table(figures["preemption"]))
    console.print(sharing_table("samples", figures["samples"], PAPER_SAMPLES))
    console.print(sharing_table("beams", figures["beams"], PAPER_BEAMS))


def policy_table(workload: str, policies: dict[str, Use]) -> Table:
    table = _table(
        f"KV slots, {workload} in OPT-13B's 15,700 slots",
        "reservation", "slots in use %", "paper %", "requests at once", "paper",
        "paged over it", "paper",
    )  # fmt: skip
    ours = policies["paged, block 16"].concurrency
    theirs = PAPER_CONCURRENCY["paged, block 16"]
    for name, use in policies.items():
        is_papers = workload.startswith("ShareGPT")
        paper = PAPER_CONCURRENCY.get(name) if is_papers else None
        table.add_row(
            name,
            f"{100 * use.utilisation:.1f}",
            f"{PAPER_UTILISATION[name]:.1f}" if is_papers else "-",
            f"{use.concurrency:.1f}",
            f"{paper:.1f}" if paper else "-",
            f"{ours / use.concurrency:.1f}x",
            f"{theirs / paper:.1f}x" if paper else "-",
        )
    return table


def block_table(figures: Figures) -> Table:
    workloads = list(figures["block sizes"])
    headings = [f"{name} {what}" for name in workloads for what in ("slots in use %", "at once")]
    table = _table(
        "block size (paper, Figure 18b: 16 to 128 best for ShareGPT, 16 and 32 for Alpaca)",
        "tokens", *headings, "attention ms", "over block 16",
    )  # fmt: skip
    times = figures["kernel by block"]
    for size in times:
        uses = [figures["block sizes"][name][size] for name in workloads]
        cells = [f"{v:.1f}" for use in uses for v in (100 * use.utilisation, use.concurrency)]
        ms = times[size]["shuffled"]
        table.add_row(
            str(size), *cells, f"{ms:.3f}", f"{100 * (ms / times[16]['shuffled'] - 1):+.0f} %"
        )
    return table


def kernel_table(rows: list[dict[str, float]]) -> Table:
    table = _table(
        "paging in the kernel, ms a layer (paper, Figure 18a: 20 to 26 % above FasterTransformer)",
        "sequences", "context", "in order", "shuffled", "cost of paging", "torch, contiguous",
        "ours over torch",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row["rows"]),
            str(row["context"]),
            f"{row['in order']:.3f}",
            f"{row['shuffled']:.3f}",
            f"{100 * (row['shuffled'] / row['in order'] - 1):+.1f} %",
            f"{row['torch']:.3f}",
            f"{100 * (row['shuffled'] / row['torch'] - 1):+.0f} %",
        )
    return table


def preemption_table(rows: dict[int, dict[str, float]]) -> Table:
    table = _table(
        f"a preempted sequence of {KNOWN_TOKENS} tokens (paper, Figure 19: recompute is level, "
        "at most 20 % above swap)",
        "block size", "recompute ms", "swap, out and in, ms", "recompute over swap",
    )  # fmt: skip
    for size, row in rows.items():
        again, swapped = row["recompute"], row["swap"]
        table.add_row(str(size), f"{again:.1f}", f"{swapped:.2f}", f"{again / swapped:.0f}x")
    return table


def sharing_table(what: str, saved: dict[str, dict[int, float]], papers: dict[str, str]) -> Table:
    numbers = list(next(iter(saved.values())))
    table = _table(
        f"blocks saved by sharing, %, {what} of one prompt (paper, Figure 15: 2 to 6, OPT-13B)",
        "lengths", *(f"{n} {what}" for n in numbers), "paper",
    )  # fmt: skip
    for workload, by_number in saved.items():
        cells = [f"{100 * by_number[n]:.1f}" for n in numbers]
        table.add_row(workload, *cells, papers[workload])
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def draw(path: Path, figures: Figures, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.2))
    sizes = [str(size) for size in figures["kernel by block"]]
    for workload, uses in figures["block sizes"].items():
        shares = [100 * use.utilisation for use in uses.values()]
        axes[0].plot(sizes, shares, marker="o", label=workload)
    axes[0].axhline(PAPER_UTILISATION["paged, block 16"], color="black", linestyle="--")
    axes[0].set(title="slots in use, % (paper: dashed)", xlabel="block size")
    policies = figures["policies"]["ShareGPT-like"]
    axes[1].bar(list(policies), [use.concurrency for use in policies.values()], label="here")
    axes[1].plot(*zip(*PAPER_CONCURRENCY.items(), strict=True), "kD", label="paper")
    axes[1].set(title="requests at once, ShareGPT-like")
    for kind in ("in order", "shuffled", "torch"):
        points = [(row["context"], row[kind]) for row in figures["kernel"] if row["rows"] == 32]
        axes[2].plot(*zip(*points, strict=True), marker="o", label=kind)
    axes[2].set(title="decode attention of 32 sequences, ms a layer", xlabel="context")
    for axis in axes:
        axis.legend()
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")
