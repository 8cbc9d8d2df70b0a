"""The processes of `octavo up`, each of which a test may kill, stop and start again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from octavo.cli.addresses import socket_address
from octavo.cli.child import Child
from octavo.cli.plan import Plan
from octavo.cli.up_config import UpConfig
from service import Deployment, free_address


@dataclass(frozen=True)
class Processes(Deployment):
    """Router and workers by name (router, prefill-0, decode-1, ...)."""

    folder: Path
    children: dict[str, Child]
    dead: set[str] = field(default_factory=set)

    def worker_addresses(self, role: str) -> list[str]:
        """Of the workers that live."""
        names = [name for name in self.children if name.startswith(role) and name not in self.dead]
        return [socket_address(self.folder, name) for name in names]

    async def kill(self, name: str) -> None:
        """As `kill -9`."""
        os.kill(self.children[name].pid, signal.SIGKILL)
        await self.children[name].wait()
        self.dead.add(name)

    async def stop(self, name: str) -> int:
        """As a supervisor: SIGTERM, and its exit status once it has drained."""
        os.kill(self.children[name].pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            code = await self.children[name].wait()
        self.dead.add(name)
        return code

    async def start(self, name: str, **env: str) -> None:
        """Start a process, maybe again at its old address, and wait until the router has met it."""
        num_joined = self._num_joined(name)
        child = self.children[name]
        child.env |= env
        await child.start()
        self.dead.discard(name)
        async with asyncio.timeout(60):
            while self._num_joined(name) == num_joined:
                assert child._process is None or child._process.returncode is None, child.log_tail()
                await asyncio.sleep(0.02)

    def _num_joined(self, name: str) -> int:
        """How often the router has met the worker; its log says so."""
        log = self.folder / "router.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(f" {name} " in line and line.endswith(" joined") for line in lines)


@asynccontextmanager
async def running_processes(
    model: Path,
    folder: Path,
    *,
    redis_url: str | None = None,
    num_pairs: int = 1,
    quantization: str | None = None,
    env: dict[str, str] | None = None,
    prefill_env: dict[str, str] | None = None,
) -> AsyncIterator[Processes]:
    """As many prefill as decode workers and a router, all met; ended with the block."""
    address = free_address()
    config = UpConfig(
        model=str(model),
        address=address,
        metrics_address="none",
        prefill_workers=num_pairs,
        decode_workers=num_pairs,
        dtype="float32",
        device="cpu",
        quantization=quantization,
        grace_s=5,
    )
    plan = Plan(config, model, folder, redis_url)
    children = {child.name: child for child in [*plan.workers(), plan.first_router("none")]}
    processes = Processes(address, folder, children)
    for name, child in children.items():
        child.env |= env or {}
        child.env |= prefill_env or {} if name.startswith("prefill") else {}
    try:
        await children["router"].start()
        workers = [name for name in children if name != "router"]
        await asyncio.gather(*(processes.start(name) for name in workers))
        yield processes
    finally:
        await asyncio.gather(*(child.end(10) for child in children.values()))
