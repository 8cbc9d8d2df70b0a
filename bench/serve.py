"""Drives the running service at several concurrencies, beside its peers, in one run.

    python bench/serve.py                          # Octavo alone
    python bench/serve.py --vllm DIR --transformers # with peers, alternating, round by round

Starts `octavo up` unless --address names a running service. DIR is an environment made by
bench/setup_vllm.sh. Prints a table, draws a plot, and writes every figure with --json FILE.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from rich.progress import Progress

from load import random_prompts, run_closed_loop, summarize
from octavo.checkpoint.resolve import resolve_model
from peers import Octavo, Transformers, Vllm
from report import draw, machine, print_table, write_json

Engine = Octavo | Vllm | Transformers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--address", help="a running Octavo; default: start one")
    parser.add_argument("--octavo-flags", default="", help="more flags for `octavo up`")
    parser.add_argument("--vllm", type=Path, help="environment made by bench/setup_vllm.sh")
    parser.add_argument("--transformers", action="store_true", help="measure generate, too")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=2, help="per caller and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/serve.png"))
    return parser.parse_args()


def bfloat16_export(model: Path, folder: Path) -> Path:
    """The same weights for every engine: one bfloat16 copy of the checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


async def measure(args: argparse.Namespace, model: Path, work: Path) -> list[dict[str, Any]]:
    """Rounds over all concurrencies and engines; the order of engines turns with every round."""
    levels = [int(level) for level in args.concurrency.split(",")]
    engines: list[Engine] = [Octavo(model, work, args.address, args.octavo_flags.split())]
    if args.vllm:
        context = 2 * (args.input_tokens + args.output_tokens)
        engines.append(Vllm(model, work, args.vllm.resolve(), context))
    if args.transformers:
        engines.append(Transformers(model, work, args.vllm))
    rows: list[dict[str, Any]] = []
    try:
        await asyncio.gather(*(engine.ready() for engine in engines))
        with Progress() as progress:
            task = progress.add_task("", total=(args.rounds + 1) * len(levels) * len(engines))
            for round_index in range(-1, args.rounds):  # round -1 warms up and is not counted
                for level in levels:
                    count = level * (args.requests if round_index >= 0 else 1)
                    seed = 1_000 * (round_index + 2) + level
                    prompts = random_prompts(count, args.input_tokens, 40_000, seed)
                    for engine in engines if round_index % 2 == 0 else reversed(engines):
                        progress.update(task, description=f"{engine.name}, {level} at once")
                        figures = await figures_of(engine, prompts, level, args.output_tokens)
                        place = {"concurrency": level, "round": round_index}
                        rows.append({"engine": engine.name} | place | figures)
                        progress.advance(task)
    finally:
        for engine in engines:
            await engine.close()
    return [row for row in rows if row["round"] >= 0]


async def figures_of(
    engine: Engine, prompts: list[list[int]], level: int, max_tokens: int
) -> dict[str, float]:
    """Throughput and latencies of one engine at one concurrency."""
    if not isinstance(engine, Transformers):
        return summarize(await run_closed_loop(engine.send, prompts, level, max_tokens))
    took = await asyncio.to_thread(engine.run, prompts[:level], max_tokens)
    figures = {"output_tokens_per_s": level * max_tokens / took["seconds"]}
    # A static batch shows no first token; one request alone does.
    return figures | ({"ttft_p50_ms": took["ttft"] * 1e3} if level == 1 else {})


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        model = bfloat16_export(resolve_model(args.model), Path(work) / "model")
        rows = asyncio.run(measure(args, model, Path(work)))
    title = f"{args.input_tokens} tokens in, {args.output_tokens} out, bfloat16, {machine()}"
    print_table(title, rows)
    draw(args.plot, title, rows)
    if args.json:
        write_json(args.json, title, rows)


if __name__ == "__main__":
    main()
