"""`octavo up`: the whole service on this machine, one process a role.

    octavo up
      +- redis-server      embedded, unless --redis-url names one
      +- prefill-worker    1..N, on CPU with cores of its own, lent to others while it idles
      +- decode-worker     1..N, the same
      +- router            where clients connect; several share the port (SO_REUSEPORT)

All listen on unix sockets in a private folder; only routers have a port, too.
"""

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.checkpoint.adapter_config import parse_adapters
from octavo.cli.addresses import check_free, choose_http_address, socket_address
from octavo.cli.child import Child
from octavo.cli.display import answer, console, prepare_model, show_ready, wait_until_ready
from octavo.cli.gpus import count_gpus, gpu_environment
from octavo.cli.metrics_addresses import give_metrics_addresses, write_targets
from octavo.engine.core_set import (
    CoreSet,
    allowed_cores,
    format_cores,
    physical_cores,
    share_cores,
    usable_cores,
)
from octavo.logs import check_log_settings
from octavo.registry.embedded import EmbeddedRedis
from octavo.registry.errors import EmbeddedRedisUnavailable
from octavo.router.config import NO_ADDRESS, check_address
from octavo.rpc.exposure import check_host_port

CORE_BOARD = "cores.board"
STOP_S = 5.0  # after its grace a role ends by itself; then it is killed


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
    kv_dtype: str
    quantization: str | None
    transport: str
    lend_cores: bool
    run_dir: Path | None
    start_timeout_s: float
    grace_s: float
    routers: int = 1
    lora: tuple[str, ...] = ()  # NAME=FOLDER
    lora_root: Path | None = None
    http_address: str | None = None  # None: where it is usual, if that is free
    metrics_address: str | None = None  # of the first process; None: free ones
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_log_settings(self.log_level, self.log_format)
        for name, most in (("prefill_workers", 64), ("decode_workers", 64), ("routers", 16)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 1 to {most}, got {getattr(self, name)}")
        parse_adapters(self.lora)
        if self.http_address not in (None, NO_ADDRESS):
            check_address(str(self.http_address))
        if self.metrics_address not in (None, NO_ADDRESS):
            check_host_port(str(self.metrics_address), "metrics_address")
        if self.routers > 1 and self.address.startswith("unix:"):
            raise ValueError(f"routers must be 1 at {self.address}: only a port can be shared")


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
    (folder / CORE_BOARD).unlink(missing_ok=True)  # it may tell of an earlier service
    try:
        model = await prepare_model(config.model)
        resolved = time.perf_counter()
        if config.routers > 1:
            check_free(config.address)
        http_address = choose_http_address(config.http_address)
        async with AsyncExitStack() as stack:
            redis_url = await stack.enter_async_context(redis_for(config))
            children = plan(config, model, folder, redis_url, http_address)
            give_metrics_addresses(children, config.metrics_address)
            write_targets(folder, children)
            watch = await stack.enter_async_context(running(children, config.grace_s))
            sockets = {child.name: socket_address(folder, child.name) for child in children}
            ready = asyncio.create_task(wait_until_ready(config.model, sockets))
            async with asyncio.timeout(config.start_timeout_s):
                if not await first_of(ready, watch, stop):
                    return
            title = f"octavo is ready: {Path(config.model).name} on {config.address}"
            show_ready(title, children, redis_url, http_address)
            waited, found = time.perf_counter() - started, resolved - started
            console.print(f"ready after {waited:.1f} s ({found:.1f} s of it to find the model)")
            if question is not None:
                ask = asyncio.create_task(answer(sockets[children[-1].name], question))
                await first_of(ask, watch, stop)
            await first_of(None, watch, stop)
            console.print("stopping: open requests may finish ...")
    finally:
        if config.run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def redis_for(config: UpConfig) -> AsyncIterator[str | None]:
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


def plan(
    config: UpConfig,
    model: Path,
    folder: Path,
    redis_url: str | None,
    http_address: str = NO_ADDRESS,
) -> list[Child]:
    """Every process with its arguments, workers first."""
    shared = ["--model", str(model)]
    # By environment: a command line, and a password in it, can be read by every user.
    env = worker_environment() | ({"OCTAVO_REDIS_URL": redis_url} if redis_url else {})
    env["OCTAVO_DRAIN_TIMEOUT_S"] = str(config.grace_s)
    env |= {"OCTAVO_LOG_LEVEL": config.log_level, "OCTAVO_LOG_FORMAT": config.log_format}
    children: list[Child] = []
    sockets: dict[str, list[str]] = {"prefill": [], "decode": []}
    counts = {"prefill": config.prefill_workers, "decode": config.decode_workers}
    num_gpus = 0 if config.device == "cpu" else count_gpus()
    shares = worker_cores(config, num_gpus)
    for role, count in counts.items():
        for index in range(count):
            name = f"{role}-{index}"
            address = socket_address(folder, name)
            sockets[role].append(address)
            cores = shares[len(children)]
            gpu = gpu_environment(len(children), sum(counts.values()), num_gpus)
            arguments = [f"{role}-worker", *shared, "--listen-address", address]
            arguments += ["--worker-id", name, "--dtype", config.dtype, "--device", config.device]
            arguments += ["--kv-dtype", config.kv_dtype, "--transport", config.transport]
            if config.quantization is not None:
                arguments += ["--quantization", config.quantization]
            arguments += adapter_arguments(config)
            arguments += core_arguments(config, shares, cores, folder)
            log = folder / f"{name}.log"
            children.append(Child(name, arguments, log, env | gpu, cores))
    router = ["router", *shared, "--listen-address", config.address]
    router += ["--http-address", http_address]
    router += ["--served-model-name", Path(config.model).name.removesuffix(".gguf")]
    for role, addresses in sockets.items():
        for address in addresses:
            router += [f"--{role}-address", address]
    if config.lora_root is not None:
        router += ["--lora-root", str(config.lora_root.absolute())]
    secret = folder / "cache-secret"
    router += ["--cache-secret-file", str(secret)]
    names = ["router"] if config.routers == 1 else [f"router-{i}" for i in range(config.routers)]
    for name in names:
        own = ["--private-address", socket_address(folder, name)]
        own += ["--shares-port"] if len(names) > 1 else []
        children.append(Child(name, router + own, folder / f"{name}.log", env))
    return children


def adapter_arguments(config: UpConfig) -> list[str]:
    """What each worker is told of LoRA adapters."""
    arguments = []
    for name, path in parse_adapters(config.lora).items():
        arguments += ["--lora", f"{name}={path.absolute()}"]
    if config.lora_root is not None:
        arguments += ["--lora-root", str(config.lora_root.absolute())]
    return arguments


def is_router(child: Child) -> bool:
    return child.name.startswith("router")


def worker_cores(config: UpConfig, num_gpus: int) -> list[CoreSet]:
    """Which cores are each worker's own, prefill workers first; none where GPUs compute."""
    allowed = allowed_cores() if num_gpus == 0 else ()
    num_workers = config.prefill_workers + config.decode_workers
    physical = usable_cores(physical_cores(allowed))
    cores = physical if len(physical) >= num_workers else allowed
    return share_cores(cores, config.prefill_workers, config.decode_workers)


def core_arguments(
    config: UpConfig, shares: list[CoreSet], own: CoreSet, folder: Path
) -> list[str]:
    """What one worker is told of its cores, and of those it may borrow."""
    if not own:
        return []
    arguments = ["--cpu-cores", format_cores(own)]
    is_shared = sum(map(len, shares)) > len(set().union(*shares))  # by workers that take turns
    if config.lend_cores and not is_shared:
        arguments += ["--core-board", str(folder / CORE_BOARD)]
    return arguments


def worker_environment() -> dict[str, str]:
    """One thread that sleeps while it waits: spinning threads on shared cores cost tenfold."""
    return {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


@asynccontextmanager
async def running(children: list[Child], grace_s: float) -> AsyncIterator["asyncio.Task[None]"]:
    """Start the children; the task raises ChildDied if one ends. Routers are ended first."""
    for child in children:
        await child.start()
    watch = asyncio.create_task(raise_when_one_ends(children))
    try:
        yield watch
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError, ChildDied):
            await watch
        workers = [child for child in children if not is_router(child)]
        routers = [child for child in children if is_router(child)]
        for group in (routers, workers):  # once they have ended, so has every request
            await asyncio.gather(*(child.end(grace_s + STOP_S) for child in group))


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


async def first_of(
    work: "asyncio.Task[None] | None", watch: "asyncio.Task[None]", stop: asyncio.Event
) -> bool:
    """Wait for the work, a death or a signal; True if the work ended, False on the signal.

    Raises:
        ChildDied: a process ended first.
    """
    stopping = asyncio.create_task(stop.wait())
    tasks: set[asyncio.Future[Any]] = {watch, stopping}
    if work is not None:
        tasks.add(work)
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
