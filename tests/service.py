"""Runs `octavo up` for a test: the processes a user starts, on a free port, ended at the end."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel

SERVICE = "octavo.inference.v1.InferenceService"


@dataclass(frozen=True)
class Service:
    """Where a running service can be reached."""

    address: str
    run_dir: Path
    process: asyncio.subprocess.Process

    def worker_addresses(self, role: str) -> list[str]:
        return [f"unix:{path}" for path in sorted(self.run_dir.glob(f"{role}-*.sock"))]

    async def workers(self, role: str) -> list[worker_pb2.GetWorkerResponse]:
        """What every worker of a role says of itself, in order of its name."""
        replies = []
        for address in self.worker_addresses(role):
            async with open_channel(address) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                replies.append(await stub.GetWorker(worker_pb2.GetWorkerRequest(), timeout=30))
        return replies

    async def wait_until_quiet(self, timeout_s: float = 5.0) -> None:
        """Every worker holds no block any more (case Q of the case list)."""
        async with asyncio.timeout(timeout_s):
            while True:
                workers = await self.workers("prefill") + await self.workers("decode")
                if all(worker.blocks.held == 0 for worker in workers):
                    break
                await asyncio.sleep(0.05)
        for worker in workers:
            blocks = worker.blocks
            assert blocks.free + blocks.cached + blocks.held == blocks.total, worker

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted(self.run_dir.glob("*.log"))
        )


@asynccontextmanager
async def running_service(
    model: Path, *flags: str, env: dict[str, str] | None = None, timeout_s: float = 120
) -> AsyncIterator[Service]:
    """`octavo up --model MODEL FLAGS...`, ready to answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="octavo-test-") as folder:
        arguments = ["--model", str(model), "--address", address, "--run-dir", folder, *flags]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo.cli.app", "up", *arguments, env=os.environ | (env or {})
        )
        service = Service(address, Path(folder), process)
        try:
            await _wait_until_ready(service, timeout_s)
            yield service
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(60):
                await process.wait()


async def _wait_until_ready(service: Service, timeout_s: float) -> None:
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    async with asyncio.timeout(timeout_s), grpc.aio.insecure_channel(service.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            assert service.process.returncode is None, service.logs()
            try:
                reply = await stub.Check(request, timeout=1)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not listening yet
            await asyncio.sleep(0.05)
