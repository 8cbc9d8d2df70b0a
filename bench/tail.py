"""How smoothly 16 streams run while long prompts arrive: p99 ITL, Octavo beside vLLM.

    python bench/tail.py --vllm DIR [--rounds 3] [--json FILE] [--plot FILE]

In each round and engine 16 streams begin; once all of them run, prompts of 2,048 and 8,000 tokens
arrive one after the other, each when the one before has its first token. Pooled are the gaps
between tokens of the 16 streams from the first long prompt's arrival to the last one's first token.
Octavo is one prefill and one decode worker, vLLM one engine on all cores with its own chunked
prefill. DIR is an environment made by bench/setup_vllm.sh; without it Octavo runs alone.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.progress import Progress

from command import add_vllm, make_parser
from export import bfloat16_export
from figures import Result, finish, ratio_of
from load import Sample, random_prompts
from octavo.checkpoint.config import load_config
from octavo.checkpoint.resolve import resolve_model
from peers import Octavo, Vllm, VllmOptions
from report import machine
from rounds import SETTLE_S

STREAM_PROMPT_TOKENS = 64
STREAM_OUTPUT_TOKENS = 6_000  # never reached: streams are cancelled at the end of a round
WARM_TOKENS = 4  # of every stream, before the first long prompt
Rows = list[dict[str, Any]]
Gaps = dict[str, list[float]]  # engine -> ms, of all rounds


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "tail")
    add_vllm(parser)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--long-prompts", default="2048,8000", help="tokens, in order of arrival")
    parser.set_defaults(rounds=3)
    return parser.parse_args()


@asynccontextmanager
async def running_streams(
    engine: Octavo | Vllm, prompts: list[list[int]]
) -> AsyncIterator[list[Sample]]:
    """Streams that all have a few tokens; they are cancelled with the block."""
    samples = [Sample(time.perf_counter()) for _ in prompts]
    started = [asyncio.Event() for _ in prompts]

    async def read(prompt: list[int], sample: Sample, is_warm: asyncio.Event) -> None:
        async with aclosing(engine.send(prompt, STREAM_OUTPUT_TOKENS)) as tokens:  # type: ignore[type-var]
            async for count in tokens:
                sample.arrivals.append((time.perf_counter(), count))
                if sample.num_tokens >= WARM_TOKENS:
                    is_warm.set()
        raise RuntimeError(f"{engine.name}: a stream ended while long prompts were computed")

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(read(*one)) for one in zip(prompts, samples, started, strict=True)
        ]
        for event in started:
            await event.wait()
        yield samples
        for task in tasks:
            task.cancel()


async def measure_round(
    engine: Octavo | Vllm, lengths: list[int], streams: int, seed: int
) -> tuple[dict[str, Any], list[float]]:
    """One round of one engine: its figures, and every gap in ms."""
    prompts = random_prompts(streams, STREAM_PROMPT_TOKENS, 40_000, seed)
    ttfts = {}
    async with running_streams(engine, prompts) as samples:
        begin = time.perf_counter()
        for length in lengths:
            sent = time.perf_counter()
            (prompt,) = random_prompts(1, length, 40_000, seed + length)
            async for _ in engine.send(prompt, 1):
                ttfts[f"ttft_{length}_ms"] = 1e3 * (time.perf_counter() - sent)
        end = time.perf_counter()
    gaps = [1e3 * gap for sample in samples for gap in gaps_within(sample, begin, end)]
    percentiles = {f"itl_p{p}_ms": float(np.percentile(gaps, p)) for p in (50, 99)}
    figures = {"engine": engine.name, "gaps": len(gaps), "itl_max_ms": max(gaps)}
    return figures | percentiles | ttfts, gaps


def gaps_within(sample: Sample, begin: float, end: float) -> list[float]:
    """Gaps that end within, and one that was still open at the end."""
    times = [at for at, _ in sample.arrivals]
    gaps = [b - a for a, b in zip(times, times[1:], strict=False) if begin < b <= end]
    return [*gaps, end - max(at for at in times if at <= end)]


async def measure(args: argparse.Namespace, model: Path, work: Path) -> tuple[Rows, Gaps]:
    """Engines take turns; the order turns with every round."""
    lengths = [int(n) for n in args.long_prompts.split(",")]
    context = load_config(model).max_position_embeddings
    if max(lengths) >= context:
        raise ValueError(f"the model's context has {context} tokens, asked for {max(lengths)}")
    engines: list[Octavo | Vllm] = [Octavo(model, work, None, args.octavo_flags.split())]
    if args.vllm:
        options = VllmOptions(args.vllm_dtype)
        engines.append(Vllm(model, work, args.vllm.resolve(), context, options))
    rows: Rows = []
    pooled: Gaps = {engine.name: [] for engine in engines}
    try:
        with Progress() as progress:
            task = progress.add_task("engines start", total=(args.rounds + 1) * len(engines))
            await asyncio.gather(*(engine.ready() for engine in engines))
            for index in range(-1, args.rounds):  # round -1 warms up with the shortest prompt
                chosen = lengths if index >= 0 else [min(lengths)]
                for engine in engines if index % 2 else reversed(engines):
                    progress.update(task, description=f"{engine.name}, round {index}")
                    await asyncio.sleep(SETTLE_S)
                    seed = 10_000 * (index + 2)
                    row, gaps = await measure_round(engine, chosen, args.streams, seed)
                    progress.advance(task)
                    if index >= 0:
                        rows.append({"round": index} | row)
                        pooled[engine.name] += gaps
    finally:
        for engine in engines:
            await engine.close()
    return rows, pooled


def draw(path: Path, title: str, pooled: Gaps) -> None:
    """Share of gaps longer than x, one line an engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    for name, gaps in pooled.items():
        ordered = np.sort(gaps)
        share = 1 - np.arange(len(ordered)) / len(ordered)
        (line,) = axis.plot(ordered, share, label=name)
        axis.axvline(float(np.percentile(gaps, 99)), color=line.get_color(), linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="gap between two tokens, ms (dotted: p99)")
    axis.set_ylabel("share of gaps at least so long")
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def describe(rows: Rows, tell: Callable[[str], None]) -> None:
    """Each engine's medians, where no ratio can say them."""
    for engine in dict.fromkeys(row["engine"] for row in rows):
        mine = [row for row in rows if row["engine"] == engine]
        names = [name for name in mine[0] if name.endswith("_ms")]
        mid = ", ".join(f"{name[:-3]} {median(row[name] for row in mine):,.0f}" for name in names)
        tell(f"{engine}, ms: {mid}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        model = bfloat16_export(resolve_model(args.model))
        rows, pooled = asyncio.run(measure(args, model, Path(work)))
    title = (
        f"{args.streams} streams while prompts of {args.long_prompts} tokens arrive, {machine()}"
    )
    p99 = [
        [row["itl_p99_ms"] for row in rows if row["engine"] == engine]
        for engine in dict.fromkeys(row["engine"] for row in sorted(rows, key=is_peers))
    ]
    figures = [ratio_of("itl-burst", p99[0], p99[1], "ms")] if len(p99) == 2 else []
    describe(rows, print)
    finish(Result(title, figures, rows), None, args.json)
    draw(args.plot, title, pooled)


def is_peers(row: dict[str, Any]) -> bool:
    return not str(row["engine"]).startswith("octavo")


if __name__ == "__main__":
    main()
