"""What serving costs on top of the model: work around a step, and served over a bare loop.

  python bench/overhead.py [--dtype bfloat16] [--rounds 3] [--json FILE] [--plot FILE]

steps   64 sequences in one engine: time between two forward passes, CPU time of the engine thread
        (the clock's beside it: it holds what the event loop's thread took away)
served  32 streams through `octavo up` over a loop of forward and argmax on the decode worker's
        core, rounds in turn. Tokens count while all 32 streams decode; the bare loop makes the
        same number of steps at the same lengths.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from figures import Figure, Result, figure_of, finish, ratio_of
from load import Sample, random_prompts, run_closed_loop
from octavo.checkpoint.resolve import resolve_model
from peers import Octavo
from report import machine
from step_overhead import measure_steps

STREAMS = 32
PROMPT_TOKENS = 64
Rows = list[dict[str, Any]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--quantization", default="", help="such as int8; of the served part")
    parser.add_argument("--only", choices=("steps", "served"))
    parser.add_argument("--sequences", type=int, default=64, help="in a step")
    parser.add_argument("--steps", type=int, default=64, help="of each sequence and round")
    parser.add_argument("--output-tokens", type=int, default=256, help="of each served stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/overhead.png"))
    return parser.parse_args()


class BareProcess:
    """bench/bare_loop.py on one core."""

    def __init__(self, model: Path, args: argparse.Namespace, core: int) -> None:
        script = str(Path(__file__).with_name("bare_loop.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, str(model), args.dtype, args.quantization, str(core)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def run(self, context: int, steps: int) -> list[float]:
        assert self._process.stdin is not None
        order = {"rows": STREAMS, "context": context, "steps": steps}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return list(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process with the bare loop ended")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def steady(samples: list[Sample]) -> tuple[float, float, float]:
    """(tokens/s, tokens of a stream before, tokens of a stream in) the time when all decode."""
    begin = max(sample.arrivals[0][0] for sample in samples)
    end = min(sample.arrivals[-1][0] for sample in samples)
    if begin >= end:
        raise RuntimeError("the streams never decoded all at once: ask for more output tokens")
    before = sum(n for sample in samples for at, n in sample.arrivals if at <= begin)
    within = sum(n for sample in samples for at, n in sample.arrivals if begin < at <= end)
    return within / (end - begin), before / len(samples), within / len(samples)


async def measure_served(
    args: argparse.Namespace, model: Path, work: Path, advance: Callable[[str], None]
) -> Rows:
    # The bare loop has the decode worker's core alone, and so does the decode worker.
    flags = ["--no-lend-cores", "--dtype", args.dtype]
    if args.quantization:
        flags += ["--quantization", args.quantization]
    octavo = Octavo(model, work, None, flags)
    cores = sorted(os.sched_getaffinity(0))
    bare = BareProcess(model, args, cores[1 % len(cores)])  # where `octavo up` puts the decoder
    before, steps = args.output_tokens / 2, args.output_tokens / 2
    rows: Rows = []
    try:
        await octavo.ready()
        for index in range(-1, args.rounds):
            figures: dict[str, float] = {}
            for part in ("served", "bare")[:: 1 if index % 2 else -1]:
                advance(f"{STREAMS} streams, {part}")
                if part == "served":
                    prompts = random_prompts(STREAMS, PROMPT_TOKENS, 40_000, seed=index + 99)
                    samples = await run_closed_loop(
                        octavo.send, prompts, STREAMS, args.output_tokens
                    )
                    figures["served_tokens_per_s"], before, steps = steady(samples)
                else:
                    took = bare.run(PROMPT_TOKENS + round(before), max(1, round(steps)))
                    figures["bare_tokens_per_s"] = STREAMS * len(took) / sum(took)
            rows.append({"part": "served", "round": index} | figures)
    finally:
        bare.close()
        await octavo.close()
    return rows[1:]


def figures_of(rows: Rows, sequences: int) -> list[Figure]:
    figures = []
    if steps := [row for row in rows if row["part"] == "steps"]:
        clock = median(row["clock_ms"] for row in steps)
        detail = f"{sequences} sequences; {clock:.2f} ms by the clock"
        figures.append(figure_of("step-overhead", [row["cpu_ms"] for row in steps], detail))
    if served := [row for row in rows if row["part"] == "served"]:
        ours, bare = (
            [row[name] for row in served] for name in ("served_tokens_per_s", "bare_tokens_per_s")
        )
        figures.append(ratio_of("served-bare", ours, bare, "tokens/s"))
    return figures


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args = parse_arguments()
    model = resolve_model(args.model)
    parts = [args.only] if args.only else ["steps", "served"]
    rows: Rows = []
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        count = {"steps": args.rounds + 1, "served": 2 * (args.rounds + 1)}
        task = progress.add_task("", total=sum(count[part] for part in parts))

        def advance(what: str) -> None:
            progress.update(task, description=what, advance=1)

        if "steps" in parts:
            steps = measure_steps(
                model, args.dtype, args.sequences, args.steps, args.rounds, advance
            )
            rows += asyncio.run(steps)
        if "served" in parts:
            rows += asyncio.run(measure_served(args, model, Path(work), advance))
    weights = args.quantization or args.dtype
    title = f"what serving costs on top of the model, {weights}, {machine()}"
    finish(Result(title, figures_of(rows, args.sequences), rows), args.plot, args.json)


if __name__ == "__main__":
    main()
