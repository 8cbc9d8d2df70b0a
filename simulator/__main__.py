"""`python -m simulator`: projections from assumptions.toml; with --validate, measurements first.

make simulate                                  # 7B and 70B, 16 and 32 workers, under a minute
make simulate ARGS="--sizes 64,256"
make simulate ARGS="--validate"                # 15 minutes: drives `octavo up` twice
"""

import argparse
import asyncio
import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Before torch is loaded: a step is timed on one thread, as a worker runs it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.progress import Progress, TaskID

from octavo.checkpoint.resolve import resolve_model
from octavo.registry.errors import EmbeddedRedisUnavailable
from simulator.assumptions import PATH, Assumptions
from simulator.project import count_points, project
from simulator.redis_cost import measured_redis_us
from simulator.show import (
    draw_projection,
    draw_validation,
    print_projection,
    print_validation,
)
from simulator.validate import run_validation

RESULTS = Path("bench/results")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator", description="Simulate the service.")
    parser.add_argument("--validate", action="store_true", help="measure first and show the error")
    parser.add_argument("--only-validate", action="store_true", help="and project nothing")
    parser.add_argument("--rounds", type=int, default=3, help="of each validated load")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="what is measured")
    parser.add_argument("--workers", type=int, default=16, help="of the ratio and hit-rate sweeps")
    parser.add_argument("--sizes", default="16,32", help="numbers of workers of the size sweep")
    parser.add_argument("--assumptions", type=Path, default=PATH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=RESULTS / "simulate.png")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    figures: dict[str, Any] = {}
    if args.validate or args.only_validate:
        figures["validation"] = validate(args)
    if not args.only_validate:
        figures["projection"] = projected(args)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"figures: {args.json}")


def validate(args: argparse.Namespace) -> dict[str, Any]:
    with Progress() as progress:
        task = progress.add_task("", total=None)

        def report(what: str) -> None:
            progress.update(task, description=what)

        spec, compared = run_validation(resolve_model(args.model), report, args.rounds)
    rows = [each.row() for each in compared]
    print_validation(rows)
    draw_validation(args.plot.with_stem(args.plot.stem + "-validation"), rows)
    return {
        "overhead": asdict(spec.overhead),
        "rows": rows,
    }


def projected(args: argparse.Namespace) -> list[dict[str, Any]]:
    assumptions = Assumptions.read(args.assumptions)
    with contextlib.suppress(EmbeddedRedisUnavailable):  # then the file's figures stand
        assumptions.redis.update(asyncio.run(measured_redis_us()))
    sizes = [int(size) for size in args.sizes.split(",")]
    with Progress() as progress:
        task: TaskID = progress.add_task("runs", total=count_points(assumptions, sizes))
        rows = project(assumptions, args.workers, sizes, args.seed, lambda: progress.advance(task))
    print_projection(rows)
    draw_projection(args.plot, rows)
    return rows


if __name__ == "__main__":
    main()
