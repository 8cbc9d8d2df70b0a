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
    levels = [int(level) for level in args.concurrency.split(",")]
    length = args.input_tokens + args.output_tokens
    servers: list[Octavo | Vllm] = [Octavo(model, work, args.address, args.octavo_flags.split())]
    if args.vllm:
        servers.append(Vllm(model, work, args.vllm.resolve(), 2 * length))
    batch = Transformers(model, work, args.vllm) if args.transformers else None
    rows: list[dict[str, Any]] = []
    try:
        await asyncio.gather(*(server.ready() for server in servers))
        with Progress() as progress:
            engines = len(servers) + (batch is not None)
            total = (args.rounds + 1) * len(levels) * engines
            task = progress.add_task("warming up", total=total)
            for round_index in range(-1, args.rounds):  # round -1 warms up and is not counted
                for level in levels:
                    count = level * (args.requests if round_index >= 0 else 1)
                    prompts = random_prompts(
                        count, args.input_tokens, 40_000, seed=1_000 * (round_index + 2) + level
                    )
                    for server in servers:
                        progress.update(task, description=f"{server.name}, {level} at once")
                        samples = await run_closed_loop(
                            server.send, prompts, level, args.output_tokens
                        )
                        figures = summarize(samples)
                        rows.append(
                            {"engine": server.name, "concurrency": level, "round": round_index}
                            | figures
                        )
                        progress.advance(task)
                    if batch is not None:
                        progress.update(task, description=f"{batch.name}, {level} at once")
                        took = await asyncio.to_thread(
                            batch.run, prompts[:level], args.output_tokens
                        )
                        rows.append(
                            {
                                "engine": batch.name,
                                "concurrency": level,
                                "round": round_index,
                                "output_tokens_per_s": level * args.output_tokens / took["seconds"],
                                "ttft_p50_ms": took["ttft"] * 1e3,
                            }
                        )
                        progress.advance(task)
    finally:
        for server in servers:
            await server.close()
        if batch is not None:
            batch.close()
    return [row for row in rows if row["round"] >= 0]


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
