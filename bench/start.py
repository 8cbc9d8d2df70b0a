"""How long a service takes from the start of its process to its first served token.

    python bench/start.py --vllm DIR [--rounds 3] [--json FILE] [--plot FILE]

Engines are started and ended in turn, alone on the machine. Round -1 fills every cache (converted
weights, compiled kernels, the page cache) and is not counted. DIR is an environment made by
bench/setup_vllm.sh; without it Octavo runs alone.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from rich.progress import Progress

from command import add_vllm, make_parser
from export import bfloat16_export
from figures import Result, figure_of, finish, ratio_of
from octavo.checkpoint.resolve import resolve_model
from octavo.inference.v1 import inference_pb2_grpc
from peers import READY_PROMPT, READY_TIMEOUT_S, Octavo, Vllm, VllmOptions
from report import machine

POLL_S = 0.05
IMPATIENT = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
]
Rows = list[dict[str, Any]]


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "start")
    add_vllm(parser)
    parser.add_argument("--max-model-len", type=int, default=2_048, help="of vLLM")
    parser.set_defaults(rounds=3)
    return parser.parse_args()


class WatchedOctavo(Octavo):
    """Octavo that is asked often, so that the moment it answers is known well."""

    async def ready(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address, options=IMPATIENT)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                assert self._process is not None
                self._process.check()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in self.send(READY_PROMPT, 2):
                        pass
                    return
                await asyncio.sleep(POLL_S)


async def start_s(make: Callable[[], Octavo | Vllm]) -> float:
    """Seconds to the end of a first answer of two tokens; the service is ended then."""
    begin = time.perf_counter()
    engine = make()
    try:
        await engine.ready()
        async for _ in engine.send(READY_PROMPT, 2):
            pass
        return time.perf_counter() - begin
    finally:
        await engine.close()


async def measure(args: argparse.Namespace, model: Path, work: Path) -> Rows:
    engines: dict[str, Callable[[], Octavo | Vllm]] = {
        "octavo": lambda: WatchedOctavo(model, work, None, args.octavo_flags.split())
    }
    if args.vllm:
        venv, options = args.vllm.resolve(), VllmOptions(args.vllm_dtype)
        engines["vllm"] = lambda: Vllm(model, work, venv, args.max_model_len, options)
    rows: Rows = []
    with Progress() as progress:
        task = progress.add_task("", total=(args.rounds + 1) * len(engines))
        for index in range(-1, args.rounds):
            figures = {}
            for name in list(engines)[:: 1 if index % 2 else -1]:
                progress.update(task, description=f"{name} starts, round {index}")
                figures[f"{name}_s"] = await start_s(engines[name])
                progress.advance(task)
            rows.append({"round": index} | figures)
    return rows[1:]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as work:
        model = bfloat16_export(resolve_model(args.model))
        rows = asyncio.run(measure(args, model, Path(work)))
    title = f"process start to first served token, warm caches, {machine()}"
    ours = [row["octavo_s"] for row in rows]
    figures = []
    if args.vllm:
        figures.append(ratio_of("ready", ours, [row["vllm_s"] for row in rows], "s"))
    else:
        print(f"octavo: {figure_of('ready', ours).value:.1f} s")
    finish(Result(title, figures, rows), args.plot, args.json)


if __name__ == "__main__":
    main()
