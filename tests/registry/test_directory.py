import asyncio
from dataclasses import replace
from pathlib import Path

from octavo.registry.connection import BACKGROUND, RedisConnection, RedisSettings, open_redis
from octavo.registry.directory import DirectoryTiming, WorkerDirectory
from octavo.registry.keys import ModelKeys
from octavo.registry.records import WorkerRecord
from registry.redis_server import RedisServer, eventually
from registry.workers import FINGERPRINT, RECORD, lease_of, worker

KEYS = ModelKeys.of(FINGERPRINT)


def directory(settings: RedisSettings, grace_s: float = 60) -> WorkerDirectory:
    timing = DirectoryTiming(refresh_s=0.01, grace_s=grace_s)
    return WorkerDirectory(settings, [FINGERPRINT], timing=timing)


async def shows(workers: WorkerDirectory, *expected: WorkerRecord) -> None:
    async def check() -> bool:
        return sorted(workers.workers(), key=str) == sorted(expected, key=str)

    await eventually(check)


async def has_refreshed(workers: WorkerDirectory, times: int = 3) -> None:
    target = workers.counters.refreshes + times

    async def check() -> bool:
        return workers.counters.refreshes >= target

    await eventually(check)


async def has_failed(workers: WorkerDirectory, times: int = 3) -> None:
    target = workers.counters.failures + times

    async def check() -> bool:
        return workers.counters.failures >= target

    await eventually(check)


async def test_workers_are_known_when_it_has_started(
    server: RedisServer, redis: RedisConnection
) -> None:
    other_model = replace(RECORD, worker_id="other", fingerprint="another model")
    for record in (RECORD, worker("decode-0", 7), other_model):
        await lease_of(redis, record).register()
    async with directory(server.settings) as workers:
        assert sorted(workers.workers(), key=str) == sorted(
            [RECORD, worker("decode-0", 7)], key=str
        )


async def test_one_directory_serves_several_models(
    server: RedisServer, redis: RedisConnection
) -> None:
    other = replace(RECORD, fingerprint="another model")
    for record in (RECORD, other):
        await lease_of(redis, record).register()
    async with WorkerDirectory(server.settings, [FINGERPRINT, "another model"]) as workers:
        assert sorted(workers.workers(), key=str) == sorted([RECORD, other], key=str)


async def test_a_change_is_told_once(server: RedisServer, redis: RedisConnection) -> None:
    changes: list[list[WorkerRecord]] = []
    async with WorkerDirectory(
        server.settings,
        [FINGERPRINT],
        on_change=changes.append,
        timing=DirectoryTiming(refresh_s=0.01),
    ) as workers:
        await has_refreshed(workers)
        assert changes == []
        await lease_of(redis, RECORD).register()
        await shows(workers, RECORD)
        await has_refreshed(workers)
        assert changes == [[RECORD]]
        restarted = worker(RECORD.worker_id, 5)
        await lease_of(redis, restarted).register()
        await shows(workers, restarted)
        assert changes == [[RECORD], [restarted]]


async def test_a_worker_that_leaves_is_forgotten_at_once(
    server: RedisServer, redis: RedisConnection
) -> None:
    lease = lease_of(redis, RECORD)
    await lease.register()
    async with directory(server.settings) as workers:
        await lease.unregister()
        await shows(workers)
        await lease.register()
        await shows(workers, RECORD)


async def test_a_worker_whose_lease_ended_is_forgotten_after_the_grace(
    server: RedisServer, redis: RedisConnection
) -> None:
    await lease_of(redis, RECORD, lease_s=0.1).register()
    stays = worker("stays", 3)
    await lease_of(redis, stays).register()
    async with directory(server.settings, grace_s=0.1) as workers:
        await shows(workers, RECORD, stays)
        await shows(workers, stays)
        assert await redis.command("SMEMBERS", KEYS.workers) == {b"stays"}


async def test_the_last_known_workers_outlive_redis_and_its_empty_return(
    server: RedisServer, redis: RedisConnection
) -> None:
    both = [RECORD, worker("decode-0", 7)]
    for record in both:
        await lease_of(redis, record).register()
    async with directory(server.settings) as workers:
        await shows(workers, *both)
        server.kill()
        await has_failed(workers)
        assert not workers.is_reachable and len(workers.workers()) == 2
        server.start()
        await has_refreshed(workers)
        assert workers.is_reachable and len(workers.workers()) == 2
        again = open_redis(server.settings, BACKGROUND)
        await lease_of(again, RECORD).register()
        await again.aclose()
        await has_refreshed(workers)
        await shows(workers, *both)


async def test_a_frozen_redis_is_no_reason_to_forget(
    server: RedisServer, redis: RedisConnection
) -> None:
    await lease_of(redis, RECORD, lease_s=0.2).register()
    async with directory(server.settings, grace_s=0.05) as workers:
        assert workers.workers() == [RECORD]
        server.freeze()
        await has_failed(workers, times=1)
        assert workers.workers() == [RECORD]
        server.thaw()
        await shows(workers)


async def test_it_starts_without_redis_and_finds_workers_later(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    async with asyncio.timeout(2), directory(server.settings) as workers:
        assert workers.workers() == [] and not workers.is_reachable
    async with directory(server.settings) as workers:
        with server:
            redis = open_redis(server.settings, BACKGROUND)
            await lease_of(redis, RECORD).register()
            await redis.aclose()
            await shows(workers, RECORD)


async def test_a_record_of_another_model_or_epoch_zero_is_dropped_and_counted(
    server: RedisServer, redis: RedisConnection
) -> None:
    for worker_id in ("a", "b", "c"):
        await lease_of(redis, worker(worker_id, 3)).register()
    await redis.command("HSET", KEYS.worker("a"), "fingerprint", "another model")
    await redis.command("HSET", KEYS.worker("b"), "epoch", "0")
    async with directory(server.settings) as workers:
        assert workers.workers() == [worker("c", 3)]
        assert workers.counters.malformed >= 2
