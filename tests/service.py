"""Runs `octavo up` for a test: the processes a user starts, on a free port, ended at the end."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.cli.addresses import ADDRESS_FILE, Addresses
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel

FREE_PORTS = ("--address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
SERVICE = "octavo.inference.v1.InferenceService"


@dataclass(frozen=True)
class Deployment:
    """A router that serves, and where the workers behind it can be asked what they hold."""

    address: str

    def worker_addresses(self, role: str) -> list[str]:
        raise NotImplementedError

    async def workers(self, role: str) -> list[worker_pb2.GetWorkerResponse]:
        """What every worker of a role says of itself, in order of its name."""
        return [await get_worker(address) for address in self.worker_addresses(role)]

    async def all_workers(self) -> list[worker_pb2.GetWorkerResponse]:
        return await self.workers("prefill") + await self.workers("decode")

    async def wait_until_quiet(self, timeout_s: float = 5.0) -> None:
        """Every worker holds no block any more (case Q of the case list)."""
        async with asyncio.timeout(timeout_s):
            workers = await self.all_workers()
            while any(worker.blocks.held for worker in workers):
                await asyncio.sleep(0.02)
                workers = await self.all_workers()
        for worker in workers:
            blocks = worker.blocks
            assert blocks.free + blocks.cached == blocks.total, worker


@dataclass(frozen=True)
class Service(Deployment):
    """Where a running `octavo up` can be reached."""

    run_dir: Path
    process: asyncio.subprocess.Process
    http_address: str

    def worker_addresses(self, role: str) -> list[str]:
        return [f"unix:{path}" for path in sorted(self.run_dir.glob(f"{role}-*.sock"))]

    def is_complete(self) -> bool:
        """Whether every router has met every worker that was started."""
        logs = list(self.run_dir.glob("*.log"))
        routers = [log for log in logs if log.stem.startswith("router")]
        names = [log.stem for log in logs if log.stem.startswith(("prefill-", "decode-"))]
        return bool(names and routers) and all(_has_met(log, names) for log in routers)

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted(self.run_dir.glob("*.log"))
        )


def _has_met(router_log: Path, names: list[str]) -> bool:
    joined = [line for line in router_log.read_text().splitlines() if line.endswith(" joined")]
    return all(any(f" {name} " in line for line in joined) for name in names)


async def get_worker(address: str) -> worker_pb2.GetWorkerResponse:
    """What one worker says of itself."""
    async with open_channel(address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        reply: worker_pb2.GetWorkerResponse = await stub.GetWorker(
            worker_pb2.GetWorkerRequest(), timeout=30
        )
        return reply


def free_address() -> str:
    """A loopback address that nobody listened at a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def running_service(
    model: Path,
    *flags: str,
    ports: tuple[str, ...] = FREE_PORTS,
    env: dict[str, str] | None = None,
    timeout_s: float = 120,
) -> AsyncIterator[Service]:
    """`octavo up --model MODEL FLAGS...`, ready to answer; no `ports`: where it is by default."""
    with tempfile.TemporaryDirectory(prefix="octavo-test-") as folder:
        arguments = ["--model", str(model), "--run-dir", folder, *ports, *flags]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo.cli.app", "up", *arguments, env=os.environ | (env or {})
        )
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await addresses_of(process, Path(folder) / ADDRESS_FILE)
                service = Service(addresses.grpc, Path(folder), process, str(addresses.http))
                await wait_until_serving(service.address, process, service.logs)
                while not service.is_complete():
                    await asyncio.sleep(0.02)
            yield service
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(60):
                await process.wait()


async def addresses_of(process: asyncio.subprocess.Process, file: Path) -> Addresses:
    """Where its first router listens, as soon as it does."""
    while not file.exists():
        assert process.returncode is None, "octavo up ended"
        await asyncio.sleep(0.02)
    return Addresses.read(file)


async def wait_until_serving(
    address: str, process: asyncio.subprocess.Process, logs: Callable[[], str]
) -> None:
    """Wait for the router's health; fail with the logs when its process ended."""
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    impatient = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 100)]
    async with grpc.aio.insecure_channel(address, options=impatient) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            assert process.returncode is None, logs()
            try:
                reply = await stub.Check(request, timeout=1)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not listening yet
            await asyncio.sleep(0.05)
