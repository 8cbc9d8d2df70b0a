"""`octavo up`: the whole service on this machine, one process a role.

    octavo up
      +- redis-server      embedded, unless --redis-url names one
      +- prefill-worker    1..N, on CPU with cores of its own, lent to others while it idles
      +- decode-worker     1..N, the same
      +- router            where clients connect; several share the port (SO_REUSEPORT)

All listen on unix sockets in a private folder; only routers have a port, too.
"""

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import typer
from rich.markup import escape

from octavo.checkpoint.errors import CheckpointError
from octavo.cli.addresses import (
    ADDRESS_FILE,
    Addresses,
    HttpUnavailable,
    choose_http_address,
    socket_address,
)
from octavo.cli.crew import ChildDied, Crew
from octavo.cli.display import (
    answer,
    console,
    prepare_model,
    show_ready,
    wait_for_file,
    wait_until_ready,
)
from octavo.cli.metrics_addresses import SUFFIX, TARGETS, read_metrics_addresses
from octavo.cli.plan import CORE_BOARD, Plan
from octavo.cli.up_config import UpConfig
from octavo.registry.embedded import EmbeddedRedis
from octavo.registry.errors import EmbeddedRedisUnavailable
from octavo.socket_folder import make_socket_folder


def up(config: UpConfig) -> None:
    """Run a service; an error becomes a line for a person, and exit status 1."""
    try:
        asyncio.run(run_up(config))
    except (CheckpointError, ChildDied, HttpUnavailable, OSError) as error:
        why = escape(str(error))
        console.print("[red]octavo could not run:[/]", why, soft_wrap=True, highlight=False)
        raise typer.Exit(1) from error


async def run_up(config: UpConfig) -> None:
    """Start everything, say when it is ready, and end it all on Ctrl-C or SIGTERM."""
    started = time.perf_counter()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(folder_for(config))
        model = await prepare_model(config.model)
        resolved = time.perf_counter()
        http_address = choose_http_address(config.http_address)
        redis_url = await stack.enter_async_context(redis_for(config))
        plan = Plan(config, model, folder, redis_url)
        crew = await stack.enter_async_context(Crew(config.grace_s))
        async with asyncio.timeout(config.start_timeout_s):
            await crew.start([*plan.workers(), plan.first_router(http_address)])
            if not await crew.wait_for(wait_for_file(plan.address_file), stop):
                return
            addresses = Addresses.read(plan.address_file)
            await crew.start(plan.other_routers(addresses))
            sockets = {child.name: socket_address(folder, child.name) for child in crew.children}
            if not await crew.wait_for(wait_until_ready(config.model, sockets), stop):
                return
        read_metrics_addresses(folder, crew.children)
        show_ready(Path(config.model).name, crew.children, redis_url, addresses)
        waited, found = time.perf_counter() - started, resolved - started
        console.print(f"ready after {waited:.1f} s ({found:.1f} s of it to find the model)")
        if config.ask is not None:
            await crew.wait_for(answer(sockets[crew.children[-1].name], config.ask), stop)
        await crew.wait_for(stop.wait(), stop)
        console.print("stopping: open requests may finish ...")


@contextmanager
def folder_for(config: UpConfig) -> Iterator[Path]:
    """Where sockets and logs are; a private one ends with the block."""
    folder = config.run_dir or make_socket_folder("octavo-")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = (CORE_BOARD, ADDRESS_FILE, TARGETS)
    for file in (*(folder / name for name in names), *folder.glob(f"*{SUFFIX}")):
        file.unlink(missing_ok=True)  # it may tell of an earlier service
    try:
        yield folder
    finally:
        if config.run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def redis_for(config: UpConfig) -> AsyncIterator[str | None]:
    """The URL of the Redis to use; starts an embedded one where none is named."""
    if config.redis_url or not config.redis:
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
