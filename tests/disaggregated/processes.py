"""Workers as processes of their own, as an operator would start them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel

START_TIMEOUT_S = 90


@dataclass(slots=True)
class WorkerProcess:
    """One worker and a channel to it."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel

    async def facts(self) -> worker_pb2.GetWorkerResponse:
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        response: worker_pb2.GetWorkerResponse = await stub.GetWorker(
            worker_pb2.GetWorkerRequest(), timeout=10
        )
        return response

    async def health(self, service: str) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return int(reply.status)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait(self, timeout_s: float = 20) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()


@asynccontextmanager
async def worker_process(
    role: str, model: Path, folder: Path, *settings: str
) -> AsyncIterator[WorkerProcess]:
    """`octavo {role}-worker`, ready; killed at the end if it still runs."""
    address = f"unix:{folder / role}.sock"
    arguments = ["--model", str(model), "--listen-address", address, "--device", "cpu"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "octavo.cli.app",
        f"{role}-worker",
        *arguments,
        *("--dtype", "float32", "--num-blocks", "300"),
        *settings,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    channel = open_channel(address)
    try:
        worker = WorkerProcess(process, channel)
        await _wait_until_ready(worker, f"octavo.internal.v1alpha1.{role.capitalize()}Service")
        yield worker
    finally:
        await channel.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _wait_until_ready(worker: WorkerProcess, service: str) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            assert worker.process.returncode is None, "the worker ended at its start"
            try:
                if await worker.health(service) == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.1)
