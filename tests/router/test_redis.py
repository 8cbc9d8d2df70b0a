"""With Redis: workers found, prefixes found, one secret for all routers; without it: only speed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from octavo.block_key import block_keys, root_key
from octavo.inference.v1 import inference_pb2_grpc
from octavo.inference.v1.inference_pb2 import GenerateRequest, TokenIds
from octavo.registry.announcer import WorkerAnnouncer
from octavo.registry.connection import RedisSettings
from octavo.registry.embedded import EmbeddedRedis
from octavo.registry.index import PrefixIndex
from octavo.registry.records import WorkerRecord
from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router
from scripted_workers import (
    EOS,
    Handover,
    ScriptedDecodeWorker,
    ScriptedPrefillWorker,
    ScriptedWorker,
)

PROMPT = list(range(3, 103))
LONG = GenerateRequest(token_ids=TokenIds(ids=PROMPT))


@asynccontextmanager
async def router_with(
    model: ServedModel, redis_url: str, num_workers: int, **settings: Any
) -> AsyncIterator[tuple[Router, Any]]:
    """A router and a client's stub, once so many workers of each role are connected."""
    config = RouterConfig(
        model="tiny",
        listen_address="127.0.0.1:0",
        redis_url=redis_url,
        # A busy machine may be slow; what is found must not depend on it here.
        lookup_budget_s=1.0,
        **settings,
    )
    async with (
        running_router(config, model) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        async with asyncio.timeout(20):
            workers = router.workers
            while min(len(workers.prefills), len(workers.decodes)) < num_workers:
                await asyncio.sleep(0.01)
        yield router, inference_pb2_grpc.InferenceServiceStub(channel)


def record_of(worker: ScriptedWorker, model: ServedModel) -> WorkerRecord:
    assert model.fingerprint is not None
    return WorkerRecord(
        worker_id=worker.facts.worker.worker_id,
        role="prefill" if isinstance(worker, ScriptedPrefillWorker) else "decode",
        address=worker.address,
        epoch=worker.facts.worker.epoch,
        model="tiny",
        fingerprint=model.fingerprint,
        layout="l",
        capacity_blocks=100,
        max_context_tokens=1024,
    )


async def nothing_held() -> list[bytes]:
    return []


async def until_registered(announcers: list[WorkerAnnouncer]) -> None:
    async with asyncio.timeout(10):
        while not all(announcer.is_registered for announcer in announcers):
            await asyncio.sleep(0.01)


async def test_workers_and_prefixes_are_found_through_redis(served_model: ServedModel) -> None:
    handover = Handover()
    layout = {"layout": {"model_fingerprint": served_model.fingerprint}}
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(EmbeddedRedis())
        settings = RedisSettings(redis.url)
        prefills = [ScriptedPrefillWorker(f"p{i}", [40, EOS], handover, **layout) for i in (0, 1)]
        decodes = [ScriptedDecodeWorker(f"d{i}", [40, EOS], handover, **layout) for i in (0, 1)]
        announcers = []
        for worker in [*prefills, *decodes]:
            await stack.enter_async_context(worker)
            announcer = WorkerAnnouncer(settings, record_of(worker, served_model), nothing_held)
            announcers.append(await stack.enter_async_context(announcer))
        await until_registered(announcers)
        _, stub = await stack.enter_async_context(router_with(served_model, redis.url, 2))
        await stub.Generate(LONG, timeout=10)
        [spec] = prefills[0].specs + prefills[1].specs
        fingerprint = record_of(prefills[1], served_model).fingerprint
        root = root_key(spec.group_key, fingerprint)
        keys = block_keys(spec.group_key, root, PROMPT, 16)
        announcers[1].publish(keys, [])  # p1 holds the prompt from now on
        index = await stack.enter_async_context(PrefixIndex(settings, fingerprint, budget_s=1.0))
        holder = ("p1", prefills[1].facts.worker.epoch)
        async with asyncio.timeout(10):
            while not await index.lookup(keys, [holder]):
                await asyncio.sleep(0.01)
        before = len(prefills[0].specs)
        for _ in range(8):
            await stub.Generate(LONG, timeout=10)
        assert len(prefills[0].specs) == before


async def test_routers_of_a_fleet_share_one_secret(served_model: ServedModel) -> None:
    handover = Handover()
    layout = {"layout": {"model_fingerprint": served_model.fingerprint}}
    async with (
        EmbeddedRedis() as redis,
        ScriptedPrefillWorker("p0", [40, EOS], handover, **layout) as prefill,
        ScriptedDecodeWorker("d0", [40, EOS], handover, **layout) as decode,
    ):
        addresses = {
            "prefill_address": (prefill.address,),
            "decode_address": (decode.address,),
        }
        async with (
            router_with(served_model, redis.url, 1, **addresses) as (_, first),
            router_with(served_model, redis.url, 1, **addresses) as (_, second),
        ):
            await first.Generate(LONG, timeout=10)
            async with asyncio.timeout(10):
                while True:
                    await second.Generate(LONG, timeout=10)
                    if prefill.specs[-1].group_key == prefill.specs[0].group_key:
                        break


async def test_dead_redis_fails_no_request(served_model: ServedModel, tmp_path: Path) -> None:
    handover = Handover()
    layout = {"layout": {"model_fingerprint": served_model.fingerprint}}
    async with (
        ScriptedPrefillWorker("p0", [40, EOS], handover, **layout) as prefill,
        ScriptedDecodeWorker("d0", [40, EOS], handover, **layout) as decode,
        router_with(
            served_model,
            f"unix://{tmp_path}/nobody.sock",
            1,
            prefill_address=(prefill.address,),
            decode_address=(decode.address,),
        ) as (_, stub),
    ):
        for _ in range(10):
            whole = await stub.Generate(LONG, timeout=5)
            assert list(whole.candidates[0].token_ids) == [40, EOS]
