"""What the throughput benchmarks share: arguments, one export of the weights, rounds, report."""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from export import bfloat16_export
from figures import Figure, Result, draw_figures, finish
from load import random_prompts
from octavo.checkpoint.resolve import resolve_model
from report import machine
from roofs import RoofProbe
from rounds import (
    THROUGHPUT,
    Case,
    Engine,
    Measured,
    Rows,
    draw_rows,
    print_awake,
    print_rows,
    run_rounds,
)

VOCABULARY = 40_000
LATENCIES = [
    ("ttft_p50_ms", "TTFT p50, ms"),
    ("ttft_p99_ms", "p99"),
    ("itl_p50_ms", "ITL p50, ms"),
    ("itl_p99_ms", "p99"),
    ("tpot_p50_ms", "TPOT p50, ms"),
]
# Starts engines into the list (so that they are ended whatever happens) and returns the cases.
Start = Callable[[Path, Path, list[Engine]], list[Case]]
MakeFigures = Callable[[Rows], list[Figure | None]]


def make_parser(description: str, name: str) -> argparse.ArgumentParser:
    """The arguments that every throughput benchmark takes."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--octavo-flags", default="", help="more flags for `octavo up`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures, rows and roofs here")
    parser.set_defaults(cores=None)  # that the roofs are measured on; all
    parser.add_argument("--plot", type=Path, default=Path(f"bench/results/{name}.png"))
    return parser


def add_lengths(parser: argparse.ArgumentParser, levels: str) -> None:
    parser.add_argument("--concurrency", default=levels, help="requests at once")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=1, help="per caller and round")


def add_vllm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", type=Path, help="environment made by bench/setup_vllm.sh")
    parser.add_argument(
        "--vllm-dtype",
        default="auto",
        help="a comma joins several, the faster counts; auto: by the processor's instructions",
    )


def levels_of(args: argparse.Namespace) -> list[int]:
    return [int(level) for level in args.concurrency.split(",")]


def case_of(
    args: argparse.Namespace, level: int, engines: Sequence[Engine], name: str = ""
) -> Case:
    """Prompts that share nothing and are new in every round; a warm-up sends one per caller."""

    def prompts(number: int) -> list[list[int]]:
        count = level * (args.requests if number >= 0 else 1)
        seed = 1_000 * (number + 2) + level
        return random_prompts(count, args.input_tokens, VOCABULARY, seed)

    return Case(name or f"{level} at once", level, engines, prompts, args.output_tokens)


async def measure(args: argparse.Namespace, start: Start, work: Path) -> Measured:
    model = bfloat16_export(resolve_model(args.model))
    engines: list[Engine] = []
    try:
        cases = start(model, work, engines)
        with RoofProbe(args.cores) as probe:
            return await run_rounds(engines, cases, args.rounds, probe)
    finally:
        for engine in engines:
            await engine.close()


def run(args: argparse.Namespace, what: str, start: Start, make_figures: MakeFigures) -> None:
    """Measure, print, draw and write; a SIGTERM ends the engines, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        measured = asyncio.run(measure(args, start, Path(work)))
    title = f"{what}, {machine()}"
    columns = [(THROUGHPUT, "tokens/s"), *LATENCIES]
    print_rows(f"{title}; medians of {args.rounds} rounds", measured.usable, columns)
    print_awake(measured.rows)
    figures = [figure for figure in make_figures(measured.usable) if figure is not None]
    finish(Result(title, figures, measured.rows, measured.roofs), None, args.json)
    draw(args.plot, title, measured.usable, figures)


def draw(path: Path, title: str, rows: Rows, figures: list[Figure]) -> None:
    """Tokens per second of every engine, and the figures beside their floors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = 2 if figures else 1
    plot, axes = pyplot.subplots(1, panels, figsize=(2 + 7.5 * panels, 5), squeeze=False)
    draw_rows(axes[0][0], rows)
    if figures:
        draw_figures(axes[0][1], figures)
    plot.suptitle(title, fontsize=10)
    plot.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.savefig(path, dpi=110)
    print(f"plot: {path}")
