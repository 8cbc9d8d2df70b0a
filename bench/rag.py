"""Questions about one document: long shared prefix, short private rest, through the whole service.

    python bench/rag.py                 # Octavo alone
    python bench/rag.py --vllm DIR      # beside vLLM with its prefix cache, round by round

Every prompt is the same 1,024 tokens and 64 of its own. Round -1 puts the document into every
engine's cache and is not counted; questions are new in each round. Starts `octavo up` unless
--address names a running service; DIR is an environment made by bench/setup_vllm.sh.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from load import random_prompts, run_closed_loop, summarize
from octavo.checkpoint.resolve import resolve_model
from peers import Octavo, Vllm
from report import engines_of, machine, pick, print_table, write_json
from serve import bfloat16_export

VOCABULARY = 40_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--address", help="a running Octavo; default: start one")
    parser.add_argument("--octavo-flags", default="", help="more flags for `octavo up`")
    parser.add_argument("--vllm", type=Path, help="environment made by bench/setup_vllm.sh")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--shared-tokens", type=int, default=1_024)
    parser.add_argument("--private-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2, help="per caller and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/rag.png"))
    return parser.parse_args()


def make_prompts(args: argparse.Namespace, round_index: int) -> list[list[int]]:
    """This round's questions behind the document, which is the same in all rounds."""
    (document,) = random_prompts(1, args.shared_tokens, VOCABULARY, seed=0)
    count = args.concurrency * (args.requests if round_index >= 0 else 1)
    questions = random_prompts(count, args.private_tokens, VOCABULARY, seed=round_index + 2)
    return [document + question for question in questions]


async def measure(args: argparse.Namespace, model: Path, work: Path) -> list[dict[str, Any]]:
    """Rounds over all engines, whose order turns with every round."""
    engines: list[Octavo | Vllm] = [Octavo(model, work, args.address, args.octavo_flags.split())]
    if args.vllm:
        context = args.shared_tokens + args.private_tokens + args.output_tokens
        engines.append(Vllm(model, work, args.vllm.resolve(), context + 64))
    rows: list[dict[str, Any]] = []
    try:
        await asyncio.gather(*(engine.ready() for engine in engines))
        with Progress() as progress:
            task = progress.add_task("", total=(args.rounds + 1) * len(engines))
            for round_index in range(-1, args.rounds):
                prompts = make_prompts(args, round_index)
                for engine in engines if round_index % 2 == 0 else reversed(engines):
                    progress.update(task, description=f"{engine.name}, round {round_index}")
                    samples = await run_closed_loop(
                        engine.send, prompts, args.concurrency, args.output_tokens
                    )
                    place = {"concurrency": args.concurrency, "round": round_index}
                    rows.append({"engine": engine.name} | place | summarize(samples))
                    progress.advance(task)
    finally:
        for engine in engines:
            await engine.close()
    return [row for row in rows if row["round"] >= 0]


def draw(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """Median and range of three figures, one bar an engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        ("output_tokens_per_s", "output tokens / s"),
        ("ttft_p50_ms", "TTFT p50, ms"),
        ("itl_p50_ms", "ITL p50, ms"),
    ]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4))
    for axis, (key, label) in zip(axes, panels, strict=True):
        for number, engine in enumerate(engines_of(rows)):
            values = pick(rows, engine, rows[0]["concurrency"], key)
            middle = median(values)
            spread = [[middle - min(values)], [max(values) - middle]]
            axis.bar(engine, middle, yerr=spread, capsize=4, color=f"C{number}")
        axis.set_title(label)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        model = bfloat16_export(resolve_model(args.model), Path(work) / "model")
        rows = asyncio.run(measure(args, model, Path(work)))
    title = (
        f"{args.shared_tokens:,} shared and {args.private_tokens} private tokens in,"
        f" {args.output_tokens} out, bfloat16, {machine()}"
    )
    print_table(title, rows)
    draw(args.plot, title, rows)
    if args.json:
        write_json(args.json, title, rows)


if __name__ == "__main__":
    main()
