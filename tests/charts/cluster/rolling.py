"""Serves a tiny model from the rendered manifests, rolls every workload under load, and scales.

Exits with 0 only if no request failed and every token is the expected one.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charts.cluster.cluster import Cluster
from charts.cluster.stage import Stage, play
from octavo.client import AsyncClient, OctavoError
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel

VALUES = Path(__file__).with_name("rolling.yaml")
SECRETS = {
    "redis-auth": {"password": b"p-a.s_s~1"},
    "cache": {"secret": b"s" * 32},
}
NUM_CLIENTS = 3
SLOW_S = 10.0  # a request that waits for so long is looked into


@dataclass
class Load:
    """Clients that ask one thing after another; what they got."""

    cluster: Cluster
    address: str
    asked: list[dict[str, Any]]  # {"prompt", "token_ids"}, as `transformers` has it
    num_done: int = 0
    failures: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All clients ask until the block ends; then each finishes what it began."""
        stop = asyncio.Event()
        clients = [asyncio.create_task(self._client(number, stop)) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*clients)

    async def _client(self, number: int, stop: asyncio.Event) -> None:
        """With the default retry policy, as any user of the client has it."""
        async with AsyncClient(self.address, timeout_s=60) as client:
            while not stop.is_set():
                number += 1
                question = self.asked[number % len(self.asked)]
                await self.ask(client, question, streamed=number % 2 == 0)

    async def ask(self, client: AsyncClient, question: dict[str, Any], *, streamed: bool) -> None:
        expected = question["token_ids"]
        sampling: dict[str, Any] = {
            "max_tokens": len(expected),
            "temperature": 0.0,
            "ignore_eos": True,
        }
        began = time.monotonic()
        slow = asyncio.get_running_loop().call_later(SLOW_S, self.cluster.show_stacks)
        try:
            if streamed:
                token_ids = [
                    token
                    async for delta in client.stream(question["prompt"], **sampling)
                    for token in delta.token_ids
                ]
            else:
                token_ids = (await client.generate(question["prompt"], **sampling)).token_ids
        except OctavoError as error:
            self.failures.append(f"after {time.monotonic() - began:.2f} s: {error}")
            return
        finally:
            slow.cancel()
        if list(token_ids) != expected:
            self.failures.append(f"wrong tokens: {token_ids} and not {expected}")
        self.num_done += 1


async def run(stage: Stage) -> None:
    async with stage.cluster(VALUES, SECRETS) as cluster:
        load = Load(cluster, cluster.address("octavo-router", 50051), stage.asked)
        async with AsyncClient(load.address, timeout_s=60) as client:
            await load.ask(client, stage.asked[0], streamed=True)
        _check(load)
        stage.tell(f"the Service at {load.address} answered with the expected tokens")
        for name in ("octavo-decode", "octavo-prefill", "octavo-router", "octavo-redis"):
            async with load.running():
                await cluster.roll(name)
            _check(load)
            stage.tell(f"{name} rolled; requests so far: {load.num_done}, failed: 0")
        async with load.running():
            await cluster.scale("octavo-decode", 2)
            await _until_all_decode(cluster)
        _check(load)
        stage.tell(f"decode scaled from 1 to 2, both decode; requests so far: {load.num_done}")
        async with load.running():
            await cluster.scale("octavo-decode", 1)
        _check(load)
        stage.tell(f"decode scaled from 2 to 1; requests so far: {load.num_done}, failed: 0")


def _check(load: Load) -> None:
    assert not load.failures, load.failures
    assert load.num_done


async def _until_all_decode(cluster: Cluster) -> None:
    """Every decode worker has run requests."""
    async with asyncio.timeout(60):
        for pod in cluster.of("octavo-decode"):
            async with open_channel(f"{pod.ip}:50062") as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                while True:
                    cluster.check()
                    reply = await stub.GetWorker(worker_pb2.GetWorkerRequest(), timeout=10)
                    if reply.counters.requests > 0:
                        break
                    await asyncio.sleep(0.2)


if __name__ == "__main__":
    play(run)
