"""What one router process relays on one core, between scripted workers and a raw client.

    python bench/relay.py [--rounds 5] [--seconds 5] [--json FILE] [--plot FILE]

    client (other cores) --> octavo router (core 0, alone) --> scripted workers (other cores)

The workers answer at once with tokens of real text, one a message; the client parses only each
stream's last message, so that the router is the slowest part. Two loads take turns:
  tokens    64 streams of 256 tokens each
  requests  32 callers, prompts of some 128 tokens as text, prefill and decode leg, 2 tokens each
What is judged is what the router relays in a second of its own CPU time, which is what it relays
on a core of its own: on two cores client and workers share the other one and may be slower than
it is. The wall-clock rate and the router's share of its core stand beside.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from rich.progress import Progress

from figures import Figure, Result, figure_of, finish
from octavo.checkpoint.resolve import resolve_model
from octavo.inference.v1 import inference_pb2
from process import free_port, on_cores
from report import machine

STREAM = "/octavo.inference.v1.InferenceService/StreamGenerate"
READY_TIMEOUT_S = 120
ROUTER_CORE = 0
PROMPT = " ".join(["The harbour master counts the boats that come home before the storm."] * 9)
Request = inference_pb2.StreamGenerateRequest
Response = inference_pb2.StreamGenerateResponse


@dataclass(frozen=True, slots=True)
class Load:
    """So many callers, each sending its next request when the last one ended."""

    name: str
    callers: int
    output_tokens: int


TOKENS = Load("tokens", callers=64, output_tokens=256)
REQUESTS = Load("requests", callers=32, output_tokens=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="for its tokenizer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load in a round")
    parser.add_argument("--router-flags", default="", help="more flags for `octavo router`")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/relay.png"))
    return parser.parse_args()


class Relay:
    """The scripted workers, a step every step_ms, and the router in front of them."""

    def __init__(self, model: Path, log_dir: Path, flags: list[str], step_ms: float = 0) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._others = set(cores[1:]) or set(cores)
        os.sched_setaffinity(0, self._others)  # the client is this process
        script = str(Path(__file__).with_name("relay_workers.py"))
        self._workers = subprocess.Popen(
            [sys.executable, script, str(model), str(step_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(log_dir / "workers.log").open("wb"),
        )
        assert self._workers.stdout is not None
        addresses = json.loads(self._workers.stdout.readline())
        self.address = f"127.0.0.1:{free_port()}"
        octavo = str(Path(sys.executable).with_name("octavo"))
        command = [octavo, "router", "--model", str(model), "--listen-address", self.address]
        for role, address in addresses.items():
            command += [f"--{role}-address", address]
        self._log = log_dir / "router.log"
        with on_cores({cores[ROUTER_CORE]}):
            self._router = subprocess.Popen(
                command + flags, stdout=self._log.open("wb"), stderr=subprocess.STDOUT
            )

    def check(self) -> None:
        if self._router.poll() is not None:
            raise RuntimeError(f"the router ended:\n{self._log.read_text()[-2000:]}")

    @property
    def cpu_s(self) -> float:
        """CPU time of the router's process so far, all threads."""
        fields = Path(f"/proc/{self._router.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._router.terminate()
        self._router.wait(60)
        assert self._workers.stdin is not None
        self._workers.stdin.close()
        self._workers.wait(30)


def request_of(load: Load) -> bytes:
    return Request(
        request=inference_pb2.GenerateRequest(
            text=PROMPT,
            sampling=inference_pb2.SamplingParams(
                max_tokens=load.output_tokens, temperature=0.0, ignore_eos=True
            ),
        )
    ).SerializeToString()


async def run_one(stream: Any, request: bytes, load: Load) -> None:
    last = b""
    async for message in stream(request):
        last = message
    got = Response.FromString(last).completed.usage.completion_tokens
    if got != load.output_tokens:
        raise RuntimeError(f"asked for {load.output_tokens} tokens, got {got}")


async def measure(
    relay: Relay, channel: grpc.aio.Channel, load: Load, seconds: float
) -> dict[str, Any]:
    """Requests that ended before the time was up, and the router's CPU time of all of them."""
    stream: Any = channel.unary_stream(STREAM)  # bytes in, bytes out
    request = request_of(load)
    end = time.perf_counter() + seconds
    num_done = 0

    async def caller() -> None:
        nonlocal num_done
        while time.perf_counter() < end:
            await run_one(stream, request, load)
            num_done += 1

    cpu_s, begin = relay.cpu_s, time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(load.callers)))
    wall_s = time.perf_counter() - begin
    cpu_s = relay.cpu_s - cpu_s
    count = num_done * (load.output_tokens if load is TOKENS else 1)
    return {
        "load": load.name,
        "per_cpu_s": count / cpu_s,
        "us_each": cpu_s / count * 1e6,
        "per_s": count / wall_s,
        "core_share": cpu_s / wall_s,
    }


async def until_ready(relay: Relay, channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            relay.check()
            try:
                await run_one(channel.unary_stream(STREAM), request_of(REQUESTS), REQUESTS)
                return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)


async def run_rounds(args: argparse.Namespace, relay: Relay) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with grpc.aio.insecure_channel(relay.address) as channel:
        with Progress() as progress:
            task = progress.add_task("router starts", total=2 * (args.rounds + 1))
            await until_ready(relay, channel)
            for index in range(-1, args.rounds):  # round -1 warms up and is not counted
                for load in (TOKENS, REQUESTS)[:: 1 if index % 2 else -1]:
                    progress.update(task, description=f"{load.name}, {load.callers} at once")
                    seconds = args.seconds if index >= 0 else min(args.seconds, 2.0)
                    row = await measure(relay, channel, load, seconds)
                    rows.append({"round": index} | row)
                    progress.advance(task)
    return [row for row in rows if row["round"] >= 0]


def figure(key: str, load: Load, rows: list[dict[str, Any]]) -> Figure:
    mine = [row for row in rows if row["load"] == load.name]
    us, wall, share = (
        median(row[name] for row in mine) for name in ("us_each", "per_s", "core_share")
    )
    detail = f"{us:,.0f} us CPU each; {wall:,.0f}/s by the clock, {share:.0%} of its core"
    return figure_of(key, [row["per_cpu_s"] for row in mine], detail)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args = parse_arguments()
    model = resolve_model(args.model)
    with tempfile.TemporaryDirectory(prefix="octavo-relay-") as folder:
        relay = Relay(model, Path(folder), args.router_flags.split())
        try:
            rows = asyncio.run(run_rounds(args, relay))
        finally:
            relay.end()
    figures = [figure("router-tokens", TOKENS, rows), figure("router-requests", REQUESTS, rows)]
    title = f"router, one process on one core, a second of its CPU time, {machine()}"
    finish(Result(title, figures, rows), args.plot, args.json)


if __name__ == "__main__":
    main()
