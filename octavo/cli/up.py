"""`octavo up`: the whole service on this machine, one process a role.

    octavo up
      +- redis-server      embedded, unless --redis-url names one
      +- prefill-worker    1..N, one core each on CPU
      +- decode-worker     1..N, one core each on CPU
      +- router            where clients connect

Workers listen on unix sockets in a private folder; only the router has a port.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from octavo.checkpoint.resolve import resolve_model
from octavo.cli.child import Child
from octavo.registry.embedded import EmbeddedRedis, EmbeddedRedisUnavailable

POLL_S = 0.05
SERVICE = "octavo.inference.v1.InferenceService"

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class UpConfig:
    """What `octavo up` may be told; every other setting reaches the roles through OCTAVO_*."""

    model: str
    address: str
    prefill_workers: int
    decode_workers: int
    redis_url: str | None
    use_redis: bool
    dtype: str
    device: str
    transport: str
    run_dir: Path | None
    start_timeout_s: float
    grace_s: float

    def __post_init__(self) -> None:
        for name in ("prefill_workers", "decode_workers"):
            if not 1 <= getattr(self, name) <= 64:
                raise ValueError(f"{name} must be 1 to 64, got {getattr(self, name)}")


class ChildDied(Exception):
    """A role's process ended by itself; the message holds the end of its log."""


async def run_up(config: UpConfig, question: str | None) -> None:
    """Start everything, say when it is ready, and end it all on Ctrl-C or SIGTERM."""
    started = time.perf_counter()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder = config.run_dir or Path(tempfile.mkdtemp(prefix="octavo-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        model = await prepare_model(config.model)
        resolved = time.perf_counter()
        async with AsyncExitStack() as stack:
            redis_url = await stack.enter_async_context(redis_for(config, folder))
            children = plan(config, model, folder, redis_url)
            watch = await stack.enter_async_context(running(children, config.grace_s))
            ready = asyncio.create_task(wait_until_ready(config, children))
            if not await first_of(ready, watch, stop):
                return
            show_ready(
                config, children, redis_url, time.perf_counter() - started, resolved - started
            )
            if question is not None:
                ask = asyncio.create_task(answer(config.address, question))
                await first_of(ask, watch, stop)
            await first_of(None, watch, stop)
            console.print("stopping: open requests may finish ...")
    finally:
        if config.run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def prepare_model(name: str) -> Path:
    """Find, fetch or convert the model, with a bar while it takes time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"finding {name}", total=None)

        def show(stage: str, num_done_bytes: int, num_total_bytes: int) -> None:
            progress.update(
                task, description=stage, completed=num_done_bytes, total=num_total_bytes
            )

        return await asyncio.to_thread(resolve_model, name, progress=show)


@asynccontextmanager
async def redis_for(config: UpConfig, folder: Path) -> AsyncIterator[str | None]:
    """The URL of the Redis to use; starts an embedded one where none is named."""
    if config.redis_url or not config.use_redis:
        yield config.redis_url
        return
    try:
        server = EmbeddedRedis()
        await server.__aenter__()
    except EmbeddedRedisUnavailable as error:
        console.print(f"[yellow]no Redis: {error}; workers are found by address[/]")
        yield None
        return
    try:
        yield server.url
    finally:
        await server.__aexit__(None, None, None)


def plan(config: UpConfig, model: Path, folder: Path, redis_url: str | None) -> list[Child]:
    """Every process with its arguments, workers first."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shared = ["--model", str(model)]
    # By environment: a command line, and a password in it, can be read by every user.
    env = worker_environment() | ({"OCTAVO_REDIS_URL": redis_url} if redis_url else {})
    children: list[Child] = []
    sockets: dict[str, list[str]] = {"prefill": [], "decode": []}
    counts = {"prefill": config.prefill_workers, "decode": config.decode_workers}
    for role, count in counts.items():
        for index in range(count):
            name = f"{role}-{index}"
            address = f"unix:{folder / name}.sock"
            sockets[role].append(address)
            core = cores[len(children) % len(cores)] if cores and config.device != "cuda" else None
            arguments = [f"{role}-worker", *shared, "--listen-address", address]
            arguments += ["--worker-id", name, "--dtype", config.dtype, "--device", config.device]
            arguments += ["--transport", config.transport]
            arguments += ["--cpu-core", str(core)] if core is not None else []
            log = folder / f"{name}.log"
            children.append(Child(name, arguments, log, env, core))
    router = ["router", *shared, "--listen-address", config.address]
    router += ["--served-model-name", Path(config.model).name.removesuffix(".gguf")]
    for role, addresses in sockets.items():
        for address in addresses:
            router += [f"--{role}-address", address]
    secret = folder / "cache-secret"
    router += ["--cache-secret-file", str(secret)]
    children.append(Child("router", router, folder / "router.log", env))
    return children


def worker_environment() -> dict[str, str]:
    """One thread that sleeps while it waits: spinning threads on shared cores cost tenfold."""
    return {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


@asynccontextmanager
async def running(children: list[Child], grace_s: float) -> AsyncIterator["asyncio.Task[None]"]:
    """Start the children; the task raises ChildDied if one ends. The router is ended first."""
    for child in children:
        await child.start()
    watch = asyncio.create_task(raise_when_one_ends(children))
    try:
        yield watch
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError, ChildDied):
            await watch
        for name in ("router", "decode", "prefill"):
            group = [child for child in children if child.name.startswith(name)]
            await asyncio.gather(*(child.end(grace_s) for child in group))


async def raise_when_one_ends(children: list[Child]) -> None:
    """Never returns; raises ChildDied with the end of the log of the first process that ended."""
    waits = {asyncio.create_task(child.wait()): child for child in children}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    wait = next(iter(done))
    child = waits[wait]
    raise ChildDied(f"{child.name} ended with status {wait.result()}:\n{child.log_tail()}")


async def wait_until_ready(config: UpConfig, children: list[Child]) -> None:
    """Poll the router's health until it serves, with one line a process."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        names = ", ".join(child.name for child in children)
        progress.add_task(f"loading {Path(config.model).name}: {names}", total=None)
        async with (
            asyncio.timeout(config.start_timeout_s),
            grpc.aio.insecure_channel(config.address) as channel,
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    reply = await stub.Check(request, timeout=1)
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(POLL_S)


async def first_of(
    work: "asyncio.Task[None] | None", watch: "asyncio.Task[None]", stop: asyncio.Event
) -> bool:
    """Wait for the work, a death or a signal; True if the work ended, False on the signal.

    Raises:
        ChildDied: a process ended first.
    """
    stopping = asyncio.create_task(stop.wait())
    tasks: set[asyncio.Task[object]] = {watch, stopping}  # type: ignore[arg-type]
    if work is not None:
        tasks.add(work)  # type: ignore[arg-type]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if watch.done():
        watch.result()
    if work is not None and work.done():
        work.result()
        return True
    if work is not None:
        work.cancel()
    return False


def show_ready(
    config: UpConfig, children: list[Child], redis_url: str | None, total_s: float, model_s: float
) -> None:
    """A short table of what runs, and the next command."""
    table = Table(title=f"octavo is ready: {Path(config.model).name} on {config.address}")
    for heading in ("role", "pid", "core", "log"):
        table.add_column(heading)
    for child in children:
        core = "" if child.core is None else str(child.core)
        table.add_row(child.name, str(child.pid), core, str(child.log))
    table.add_row("redis", "", "", "none" if redis_url is None else redis_url.rpartition("@")[2])
    console.print(table)
    console.print(f"ready after {total_s:.1f} s ({model_s:.1f} s of it to find the model)")
    console.print('ask it:  octavo generate "What is a paged KV cache?"     end it:  Ctrl-C')


async def answer(address: str, question: str) -> None:
    """Stream one answer to standard output."""
    from octavo.client import AsyncClient

    async with AsyncClient(address) as client:
        messages = [{"role": "user", "content": question}]
        async for delta in client.stream(messages, max_tokens=200):
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
