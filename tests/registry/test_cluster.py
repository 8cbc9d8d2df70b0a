"""A Cluster of three: every model's keys lie in one slot, models spread over the nodes."""

import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial

import pytest

from octavo.registry.announcer import AnnouncerTiming, WorkerAnnouncer
from octavo.registry.breaker import CircuitBreaker
from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.directory import DirectoryTiming, WorkerDirectory
from octavo.registry.index import PrefixIndex
from octavo.registry.records import WorkerRecord
from registry.redis_server import RedisServer, binary, eventually, free_port, need_directive
from registry.workers import RECORD, block_keys

KEYS = block_keys(300)
TIMING = AnnouncerTiming(lease_s=5, renew_s=0.2, flush_s=0.005, max_retry_s=0.2)
RECORDS = [replace(RECORD, fingerprint=f"model {number}") for number in range(6)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    need_directive("cluster-port")
    with ExitStack() as stack:
        running = []
        for number in range(3):
            options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
            options += ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
            folder = tmp_path_factory.mktemp(f"node-{number}")
            running.append(stack.enter_context(RedisServer(folder, *options, port=free_port())))
        addresses = [f"127.0.0.1:{node.port}" for node in running]
        command = [binary("redis-cli"), "--cluster", "create", *addresses, "--cluster-yes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        yield running


@pytest.fixture
def settings(nodes: list[RedisServer]) -> RedisSettings:
    return RedisSettings(f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}")


async def held() -> list[bytes]:
    return KEYS


async def ask(node: RedisServer, command: str) -> object:
    redis = open_redis(node.settings, BACKGROUND)
    try:
        return await redis.command(command)
    finally:
        await redis.aclose()


async def num_keys(node: RedisServer) -> int:
    reply = await ask(node, "DBSIZE")
    assert isinstance(reply, int)
    return reply


async def finds(index: PrefixIndex, record: WorkerRecord, count: int = 300) -> bool:
    return await index.lookup(KEYS, [(record.worker_id, record.epoch)]) == {record.worker_id: count}


async def test_six_models_work_and_spread_over_the_nodes(
    nodes: list[RedisServer], settings: RedisSettings
) -> None:
    fingerprints = [record.fingerprint for record in RECORDS]
    timing = DirectoryTiming(refresh_s=0.05)
    async with AsyncExitStack() as stack:
        announcers = [
            await stack.enter_async_context(WorkerAnnouncer(settings, record, held, TIMING))
            for record in RECORDS
        ]
        for record in RECORDS:
            index = PrefixIndex(settings, record.fingerprint, budget_s=2)
            await stack.enter_async_context(index)
            await eventually(partial(finds, index, record))
        directory = await stack.enter_async_context(
            WorkerDirectory(settings, fingerprints, timing=timing)
        )
        assert sorted(directory.workers(), key=str) == sorted(RECORDS, key=str)
        announcers[-1].publish([], KEYS[100:])
        await eventually(partial(finds, index, RECORDS[-1], 100))
        assert sum([await num_keys(node) > 300 for node in nodes]) >= 2


async def test_a_node_that_is_killed_and_comes_back_empty_is_filled_again(
    nodes: list[RedisServer], settings: RedisSettings
) -> None:
    breaker = CircuitBreaker(open_s=0.1)
    for node in nodes:
        await ask(node, "FLUSHALL")
    async with (
        WorkerAnnouncer(settings, RECORD, held, TIMING) as announcer,
        PrefixIndex(settings, RECORD.fingerprint, budget_s=0.2, breaker=breaker) as index,
    ):
        await eventually(partial(finds, index, RECORD))
        (owner,) = [node for node in nodes if await num_keys(node)]
        owner.kill()

        async def is_noticed() -> bool:
            return announcer.counters.failures > 0 and not await finds(index, RECORD)

        await eventually(is_noticed)
        owner.start()
        await eventually(partial(finds, index, RECORD), within_s=20)
