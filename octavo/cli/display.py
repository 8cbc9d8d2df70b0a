"""What `octavo up` shows a person: progress while it starts, a table when ready, an answer."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from octavo.checkpoint.resolve import resolve_model
from octavo.cli.addresses import ADDRESS, Addresses
from octavo.cli.child import Child
from octavo.client import AsyncClient
from octavo.engine.core_set import format_cores

POLL_S = 0.05
SERVICE = "octavo.inference.v1.InferenceService"
WORKER_SERVICE = "octavo.internal.v1alpha1.WorkerService"
# By default a channel tries again after 1 s, 1.6 s, 2.6 s: a service would look slow to start.
IMPATIENT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]

console = Console(stderr=True)


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


async def wait_for_file(file: Path) -> None:
    """Poll until the first router has written where it listens."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("starting a router", total=None)
        while not file.exists():
            await asyncio.sleep(POLL_S)


async def wait_until_ready(model: str, addresses: dict[str, str]) -> None:
    """Poll until all processes (name to address) serve, one after another, showing who is awaited.

    Routers come last: they are ready with the first worker of each role.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        loading = dict(addresses)
        while loading:
            progress.update(task, description=f"loading {Path(model).name}: {', '.join(loading)}")
            name, address = next(iter(loading.items()))
            service = SERVICE if name.startswith("router") else WORKER_SERVICE
            await _wait_until_serving(address, service)
            del loading[name]


async def _wait_until_serving(address: str, service: str) -> None:
    """Poll a process's health until it serves."""
    request = health_pb2.HealthCheckRequest(service=service)
    async with grpc.aio.insecure_channel(address, options=IMPATIENT) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs know no method
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                reply = await stub.Check(request, timeout=1)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(POLL_S)


def show_ready(
    model: str, children: list[Child], redis_url: str | None, addresses: Addresses
) -> None:
    """A short table of what runs, and the next command."""
    table = Table(title=f"octavo is ready: {model} on {addresses.grpc}")
    for heading in ("role", "pid", "cores", "metrics", "log"):
        table.add_column(heading)
    for child in children:
        cores = format_cores(child.cores)
        table.add_row(child.name, str(child.pid), cores, child.metrics_address, str(child.log))
    table.add_row(
        "redis", "", "", "", "none" if redis_url is None else redis_url.rpartition("@")[2]
    )
    console.print(table)
    if addresses.http is not None:
        scheme = "https" if "OCTAVO_TLS_CERT_FILE" in os.environ else "http"
        url = f"{scheme}://{addresses.http}/v1"
        console.print(f"OpenAI clients:  base_url {url}", highlight=False)
    where = "" if addresses.grpc == ADDRESS else f"--address {addresses.grpc} "
    question = '"What is a paged KV cache?"'
    ask = f"ask it:  octavo generate {where}{question}     end it:  Ctrl-C"
    console.print(ask, highlight=False, soft_wrap=True)


async def answer(address: str, question: str) -> None:
    """Stream one answer to standard output.

    address: one that is not encrypted; a key is asked for there, too.
    """
    async with AsyncClient(address, api_key=os.environ.get("OCTAVO_API_KEY")) as client:
        messages = [{"role": "user", "content": question}]
        # Small models ramble at temperature 1; a stranger's first answer should not.
        async for delta in client.stream(messages, max_tokens=200, temperature=0.2, top_p=0.9):
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
