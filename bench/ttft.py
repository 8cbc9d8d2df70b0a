"""Time to the first token: beside vLLM's, warm over cold, the hand-off's share, the cache's cost.

    python bench/ttft.py [--vllm DIR] [--only vllm,warm,handoff,cache] [--json FILE] [--plot FILE]

One request at a time, all prompts new, engines in turn within each round.
  vllm     a prompt of 2,048 tokens, Octavo over vLLM
  warm     a prompt whose first 90 % were computed for an earlier one, over a prompt that is all new
  handoff  P's last chunk computed to D's last block verified, and the opening of the pull before
           P's start: the transfer's time minus the prefill's, both as the service reports them, as
           a share of TTFT; prompts of 512, 1,024 and 2,048 tokens through shared memory and bytes
  cache    in one engine: see bench/cache_cost.py
DIR is an environment made by bench/setup_vllm.sh; without it `vllm` is left out.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from command import add_vllm, make_parser
from export import bfloat16_export
from figures import Figure, Result, figure_of, finish, ratio_of
from load import random_prompts
from octavo.checkpoint.resolve import resolve_model
from octavo.inference.v1 import inference_pb2
from peers import Octavo, Vllm, VllmOptions
from report import machine
from rounds import SETTLE_S

PARTS = ("vllm", "warm", "handoff", "cache")
TRANSPORTS = {"handoff-shm": "shared_memory", "handoff-bytes": "bytes"}
Rows = list[dict[str, Any]]
Advance = Callable[[str], None]


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "ttft")
    add_vllm(parser)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--prompt-tokens", type=int, default=2_048)
    parser.add_argument("--handoff-tokens", default="512,1024,2048")
    parser.add_argument("--cache-dtype", default="bfloat16", help="of the engines of `cache`")
    return parser.parse_args()


class TimedOctavo(Octavo):
    """Octavo whose requests tell what the service says of their time."""

    async def timing(self, prompt: list[int], max_tokens: int) -> inference_pb2.Timing:
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=inference_pb2.SamplingParams(
                max_tokens=max_tokens, temperature=0.0, ignore_eos=True
            ),
        )
        reply: inference_pb2.GenerateResponse = await self._stub.Generate(request)
        return reply.timing


async def ttft_s(engine: Octavo | Vllm, prompt: list[int]) -> float:
    """Seconds to the first of two tokens: the second one needs the decode worker."""
    begin, first = time.perf_counter(), 0.0
    async for _ in engine.send(prompt, 2):
        first = first or time.perf_counter() - begin
    return first


async def measure_vllm(
    engines: list[Octavo | Vllm], args: argparse.Namespace, tell: Advance
) -> Rows:
    rows: Rows = []
    for index in range(-1, args.rounds):
        (prompt,) = random_prompts(1, args.prompt_tokens, 40_000, seed=index + 1_000)
        figures = {}
        for place, engine in list(enumerate(engines))[:: 1 if index % 2 else -1]:
            tell(f"{engine.name}, {args.prompt_tokens:,} tokens")
            await asyncio.sleep(SETTLE_S)
            figures["octavo_ms" if place == 0 else "vllm_ms"] = 1e3 * await ttft_s(engine, prompt)
        rows.append({"part": "vllm", "round": index} | figures)
    return rows[1:]


async def measure_warm(octavo: Octavo, args: argparse.Namespace, tell: Advance) -> Rows:
    """Cold, then warm behind it: both are new in their last tenth."""
    rows: Rows = []
    shared = args.prompt_tokens * 9 // 10
    for index in range(-1, args.rounds):
        cold, other = random_prompts(2, args.prompt_tokens, 40_000, seed=index + 2_000)
        tell("cold")
        cold_s = await ttft_s(octavo, cold)
        tell("warm")
        warm_s = await ttft_s(octavo, cold[:shared] + other[shared:])
        row = {"part": "warm", "round": index, "cold_ms": cold_s * 1e3, "warm_ms": warm_s * 1e3}
        rows.append(row)
    return rows[1:]


async def measure_handoff(
    services: dict[str, TimedOctavo], args: argparse.Namespace, tell: Advance
) -> Rows:
    rows: Rows = []
    for index in range(-1, args.rounds):
        for length in [int(n) for n in args.handoff_tokens.split(",")]:
            for key, octavo in list(services.items())[:: 1 if index % 2 else -1]:
                tell(f"{TRANSPORTS[key]}, {length:,} tokens")
                (prompt,) = random_prompts(1, length, 40_000, seed=length + 7 * index)
                timing = await octavo.timing(prompt, 2)
                prefill, transfer, first = (
                    duration.ToNanoseconds() / 1e6
                    for duration in (timing.prefill, timing.transfer, timing.time_to_first_token)
                )
                row = {"part": key, "round": index, "tokens": length, "prefill_ms": prefill}
                rows.append(row | {"transfer_ms": transfer, "ttft_ms": first})
    return [row for row in rows if row["round"] >= 0]


async def measure_served(args: argparse.Namespace, model: Path, work: Path, tell: Advance) -> Rows:
    """Every service runs from the start; one that is not asked sleeps."""
    parts, flags = args.only.split(","), args.octavo_flags.split()
    services = {
        key: TimedOctavo(model, work / key, None, [*flags, "--transport", transport])
        for key, transport in TRANSPORTS.items()
        if key == "handoff-shm" or "handoff" in parts
    }
    octavo = services["handoff-shm"]
    engines: list[Octavo | Vllm] = [*services.values()]
    if args.vllm and "vllm" in parts:
        length, options = args.prompt_tokens + 64, VllmOptions(args.vllm_dtype)
        engines.append(Vllm(model, work, args.vllm.resolve(), length, options))
    rows: Rows = []
    try:
        await asyncio.gather(*(engine.ready() for engine in engines))
        if args.vllm and "vllm" in parts:
            rows += await measure_vllm([octavo, engines[-1]], args, tell)
        if "warm" in parts:
            rows += await measure_warm(octavo, args, tell)
        if "handoff" in parts:
            rows += await measure_handoff(services, args, tell)
    finally:
        for engine in engines:
            await engine.close()
    return rows


def figures_of(rows: Rows) -> list[Figure]:
    def column(part: str, name: str) -> list[float]:
        return [row[name] for row in rows if row["part"] == part]

    figures = []
    if theirs := column("vllm", "vllm_ms"):
        figures.append(ratio_of("ttft-2048", column("vllm", "octavo_ms"), theirs, "ms"))
    if cold := column("warm", "cold_ms"):
        figures.append(ratio_of("warm-ttft", column("warm", "warm_ms"), cold, "ms"))
    if cost := column("cache", "cost_percent"):
        outside, total = (
            median(column("cache", name)) for name in ("outside_with_cache_ms", "total_without_ms")
        )
        detail = f"{outside:.0f} ms outside of the model of {total:,.0f} ms in all"
        figures.append(figure_of("cache-cost", cost, detail))
    for key in TRANSPORTS:
        for length in dict.fromkeys(column(key, "tokens")):
            mine = [row for row in rows if row["part"] == key and row["tokens"] == length]
            figures.append(handoff_figure(key, mine, f"{length:,} tokens"))
    return figures


def handoff_figure(key: str, rows: Rows, variant: str) -> Figure:
    left = [row["transfer_ms"] - row["prefill_ms"] for row in rows]
    shares = [100 * ms / row["ttft_ms"] for ms, row in zip(left, rows, strict=True)]
    detail = f"{median(left):.1f} of {median(row['ttft_ms'] for row in rows):,.0f} ms"
    return figure_of(key, shares, detail, variant)


def num_calls(args: argparse.Namespace) -> int:
    handoffs = 2 * len(args.handoff_tokens.split(","))
    calls = {"vllm": 2 if args.vllm else 0, "warm": 2, "handoff": handoffs, "cache": 2}
    return (args.rounds + 1) * sum(calls[part] for part in args.only.split(","))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args = parse_arguments()
    rows: Rows = []
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        task = progress.add_task("services start", total=num_calls(args))

        def tell(what: str) -> None:
            progress.update(task, description=what, advance=1)

        work = Path(folder)
        for key in TRANSPORTS:
            (work / key).mkdir()
        resolved = resolve_model(args.model)
        if args.only != "cache":
            model = bfloat16_export(resolved)
            rows += asyncio.run(measure_served(args, model, work, tell))
        if "cache" in args.only.split(","):
            from cache_cost import measure_cost  # with torch, which nobody else here needs

            rows += measure_cost(resolved, args.cache_dtype, args.rounds, tell)
    title = f"time to the first token, {machine()}"
    finish(Result(title, figures_of(rows), rows), args.plot, args.json)


if __name__ == "__main__":
    main()
