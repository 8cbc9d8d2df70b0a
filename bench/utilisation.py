"""How full the held KV blocks are while requests of mixed lengths run through the whole service.

    python bench/utilisation.py            # ShareGPT-like lengths, block sizes 8 to 128

Starts `octavo up` once per block size. Utilisation is written slots over the slots of held blocks,
summed over the decode worker's steps; the PagedAttention paper (SOSP'23) gives 96.3 % for vLLM and
20.4 to 38.2 % for systems that reserve the longest output.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from load import random_prompts
from octavo.checkpoint.resolve import resolve_model
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from peers import Octavo
from report import machine, write_json

# Mean prompt and output of ShareGPT as the paper samples it (its Figure 11).
MEAN_INPUT, MEAN_OUTPUT = 161, 338
PAPER_PERCENT = 96.3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--block-sizes", default="8,16,32,64,128")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/utilisation.png"))
    return parser.parse_args()


def mixed_lengths(count: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens, log-normal around the means, capped at 4 times the mean."""
    rng = np.random.default_rng(7)

    def draw(mean: int) -> list[int]:
        values = rng.lognormal(np.log(mean) - 0.5, 1.0, count)
        return np.clip(values, 4, 4 * mean).astype(int).tolist()

    return list(zip(draw(MEAN_INPUT), draw(MEAN_OUTPUT), strict=True))


async def measure(args: argparse.Namespace, block_size: int, work: Path) -> dict[str, Any]:
    flags = ["--run-dir", str(work)]
    service = Octavo(
        resolve_model(args.model), work, None, flags, {"OCTAVO_BLOCK_SIZE": str(block_size)}
    )
    try:
        await service.ready()
        lengths = mixed_lengths(args.requests)
        before = await counters(work)
        await run_mixed(service, lengths, args.concurrency)
        after = await counters(work)
    finally:
        await service.close()
    live = after.live_slot_steps - before.live_slot_steps
    allocated = after.allocated_slot_steps - before.allocated_slot_steps
    return {"block_size": block_size, "live": live, "allocated": allocated,
            "percent": 100 * live / allocated}  # fmt: skip


async def run_mixed(service: Octavo, lengths: list[tuple[int, int]], concurrency: int) -> None:
    """Every request with an own prompt, `concurrency` of them open at a time."""
    queue = iter(enumerate(lengths))

    async def caller() -> None:
        for seed, (num_input, num_output) in queue:
            prompt = random_prompts(1, num_input, 40_000, seed)[0]
            async for _ in service.send(prompt, num_output):
                pass

    await asyncio.gather(*(caller() for _ in range(concurrency)))


async def counters(work: Path) -> worker_pb2.GetWorkerResponse.Counters:
    async with grpc.aio.insecure_channel(f"unix:{work}/decode-0.sock") as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        return (await stub.GetWorker(worker_pb2.GetWorkerRequest())).counters


def show(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    title = f"KV slots in use, {args.requests} requests of mixed lengths, {machine()}"
    table = Table(title=title)
    for heading in ("block size", "written slots x steps", "held slots x steps", "utilisation"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["block_size"]),
            str(row["live"]),
            str(row["allocated"]),
            f"{row['percent']:.2f} %",
        )
    table.add_row("paper, 16", "", "", f"{PAPER_PERCENT} %")
    Console(width=110).print(table)
    draw(args.plot, title, rows)
    if args.json:
        write_json(args.json, title, rows)


def draw(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4))
    axis.bar([str(row["block_size"]) for row in rows], [row["percent"] for row in rows])
    axis.axhline(PAPER_PERCENT, color="black", linestyle="--", label="vLLM in the paper")
    axis.set_xlabel("block size, tokens")
    axis.set_ylabel("written slots of held blocks, %")
    axis.set_ylim(50, 100)
    axis.legend(loc="lower left")
    axis.set_title(title, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def main() -> None:
    args = parse_arguments()
    sizes = [int(size) for size in args.block_sizes.split(",")]
    rows = []
    with Progress() as progress:
        task = progress.add_task("block size", total=len(sizes))
        for size in sizes:
            progress.update(task, description=f"block size {size}")
            with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
                rows.append(asyncio.run(measure(args, size, Path(work))))
            progress.advance(task)
    show(rows, args)


if __name__ == "__main__":
    main()
