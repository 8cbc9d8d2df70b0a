"""A worker whose engine stands still says so, though its port answers."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.engine.block_pool import BlockCounts
from octavo.engine.load import Load
from octavo.rpc.channels import open_channel
from octavo.rpc.server import NOT_SERVING, SERVING, Server
from octavo.worker.liveness import watch_engine

IDLE = Load(0, 0, 0, BlockCounts(8, 8, 0, 0), steps=3)


async def test_liveness_follows_steps_and_not_the_port() -> None:
    server, engine_loop = Server(()), SimpleNamespace(load=IDLE)
    port = await server.start("127.0.0.1:0")
    watching = asyncio.create_task(watch_engine(engine_loop, server, standstill_s=0.3))  # type: ignore[arg-type]
    async with open_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(10):
        states: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await states.read()).status == SERVING
        await asyncio.sleep(0.6)  # idle for longer than the limit: that is no standstill
        engine_loop.load = replace(IDLE, running_sequences=1)
        began = asyncio.get_running_loop().time()
        assert (await states.read()).status == NOT_SERVING
        assert asyncio.get_running_loop().time() - began > 0.25
        engine_loop.load = replace(IDLE, running_sequences=1, steps=4)
        assert (await states.read()).status == SERVING
        states.cancel()
    watching.cancel()
    await server.grpc.stop(0)
