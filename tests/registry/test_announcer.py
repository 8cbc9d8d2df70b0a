import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from octavo.registry.announcer import MAX_PENDING_EVENTS, AnnouncerTiming, WorkerAnnouncer
from octavo.registry.breaker import CircuitBreaker
from octavo.registry.connection import RedisConnection, RedisSettings
from octavo.registry.index import PrefixIndex
from octavo.registry.keys import ModelKeys
from registry.redis_server import RedisServer, eventually, free_port
from registry.workers import FINGERPRINT, RECORD, block_keys, worker

KEYS = ModelKeys.of(FINGERPRINT)
TIMING = AnnouncerTiming(lease_s=5, renew_s=0.1, flush_s=0.005, max_retry_s=0.2)


class Cache:
    """Stands in for a worker's prefix cache: what it holds, and how often it was asked."""

    def __init__(self, held: Sequence[bytes] = ()) -> None:
        self.held = list(held)
        self.num_snapshots = 0

    async def snapshot(self) -> list[bytes]:
        self.num_snapshots += 1
        return list(self.held)


@pytest.fixture
async def index(server: RedisServer) -> AsyncIterator[PrefixIndex]:
    async with patient_index(server.settings) as running:
        yield running


def patient_index(settings: RedisSettings) -> PrefixIndex:
    breaker = CircuitBreaker(max_failures=10**9)
    return PrefixIndex(settings, FINGERPRINT, budget_s=5, breaker=breaker)


async def shows(index: PrefixIndex, keys: list[bytes], count: int, epoch: int = 0) -> None:
    """Wait until the index knows that the worker holds the first `count` of `keys`."""
    expected = {RECORD.worker_id: count} if count else {}

    async def check() -> bool:
        return await index.lookup(keys, [(RECORD.worker_id, epoch or RECORD.epoch)]) == expected

    await eventually(check)


async def test_blocks_of_the_start_and_later_events_become_visible(
    server: RedisServer, index: PrefixIndex
) -> None:
    keys = block_keys(300)
    async with WorkerAnnouncer(
        server.settings, RECORD, Cache(keys[:200]).snapshot, TIMING
    ) as announcer:
        await shows(index, keys, 200)
        announcer.publish(keys[200:], [])
        await shows(index, keys, 300)
        announcer.publish([], keys[150:])
        await shows(index, keys, 150)
        announcer.publish(keys[150:160], [])
        announcer.publish([], keys[155:160])
        await shows(index, keys, 155)
        assert announcer.is_registered and announcer.counters.failures == 0


async def test_publish_may_be_called_from_the_engines_thread(
    server: RedisServer, index: PrefixIndex
) -> None:
    keys = block_keys(400)
    async with WorkerAnnouncer(server.settings, RECORD, Cache().snapshot, TIMING) as announcer:

        def engine() -> None:
            for start in range(0, 400, 4):
                announcer.publish(keys[start : start + 4], [])

        thread = threading.Thread(target=engine)
        thread.start()
        await shows(index, keys, 400)
        thread.join()


async def test_flushall_is_repaired_by_the_next_renewal(
    server: RedisServer, redis: RedisConnection, index: PrefixIndex
) -> None:
    keys = block_keys(50)
    async with WorkerAnnouncer(server.settings, RECORD, Cache(keys).snapshot, TIMING) as announcer:
        await shows(index, keys, 50)
        await redis.command("FLUSHALL")
        await shows(index, keys, 50)
        assert announcer.counters.gone == 1 and announcer.counters.registrations == 2


async def test_a_killed_redis_that_comes_back_empty_learns_everything_again(
    server: RedisServer, index: PrefixIndex
) -> None:
    cache = Cache(block_keys(50))
    async with WorkerAnnouncer(server.settings, RECORD, cache.snapshot, TIMING) as announcer:
        await shows(index, cache.held, 50)
        server.kill()
        more = block_keys(10, "computed while Redis was away")
        cache.held += more
        announcer.publish(more, [])

        async def is_noticed() -> bool:
            return announcer.counters.failures > 1

        await eventually(is_noticed)
        server.start()
        await shows(index, cache.held, 60)


async def test_a_redis_that_comes_back_with_an_older_dump_is_told_the_rest(tmp_path: Path) -> None:
    """Also what a failover to a replica that was behind looks like: the lease is there."""
    server = RedisServer(tmp_path / "redis", "--dbfilename", "dump.rdb")
    cache = Cache(block_keys(50))
    timing = AnnouncerTiming(lease_s=60, renew_s=0.1, flush_s=0.005, max_retry_s=0.2)
    with server:
        async with (
            patient_index(server.settings) as index,
            WorkerAnnouncer(server.settings, RECORD, cache.snapshot, timing) as announcer,
        ):
            await shows(index, cache.held, 50)
            await index._redis.command("SAVE")
            cache.held += block_keys(10, "after the dump")
            announcer.publish(cache.held[50:], [])
            await shows(index, cache.held, 60)
            server.kill()
            server.start()
            await shows(index, cache.held, 60)
            assert announcer.counters.lost_writes >= 1 and announcer.counters.gone == 0


async def test_a_worker_may_start_before_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    keys = block_keys(10)
    async with (
        WorkerAnnouncer(server.settings, RECORD, Cache(keys).snapshot, TIMING) as announcer,
        patient_index(server.settings) as index,
    ):

        async def is_noticed() -> bool:
            return announcer.counters.failures > 1

        await eventually(is_noticed)
        assert not announcer.is_registered
        with server:
            await shows(index, keys, 10)


async def test_a_block_removed_while_a_snapshot_is_taken_stays_removed(
    server: RedisServer, redis: RedisConnection, index: PrefixIndex
) -> None:
    keys = block_keys(4)
    proceed = asyncio.Event()

    async def slow_snapshot() -> list[bytes]:
        await proceed.wait()
        return keys

    async with WorkerAnnouncer(server.settings, RECORD, slow_snapshot, TIMING) as announcer:
        announcer.publish(keys, [])
        await shows(index, keys, 4)
        announcer.publish([], keys[2:])
        await shows(index, keys, 2)
        proceed.set()

        async def is_taken() -> bool:
            return announcer.counters.snapshots == 1 and announcer.counters.published_blocks >= 6

        await eventually(is_taken)
        assert await redis.command("EXISTS", *(KEYS.block(key) for key in keys)) == 2


async def test_the_lease_is_renewed_while_the_engine_is_too_busy_for_a_snapshot(
    server: RedisServer,
) -> None:
    async def endless_snapshot() -> list[bytes]:
        await asyncio.Event().wait()
        return []

    async with WorkerAnnouncer(server.settings, RECORD, endless_snapshot, TIMING) as announcer:

        async def is_renewed() -> bool:
            return announcer.counters.renewals >= 3

        await eventually(is_renewed)


async def test_a_failing_snapshot_does_not_stop_later_blocks(
    server: RedisServer, index: PrefixIndex
) -> None:
    keys = block_keys(4)

    async def dead_engine() -> list[bytes]:
        raise RuntimeError("the engine thread has ended")

    async with WorkerAnnouncer(server.settings, RECORD, dead_engine, TIMING) as announcer:
        announcer.publish(keys, [])
        await shows(index, keys, 4)


async def test_more_events_than_the_outbox_holds_end_in_a_snapshot(
    server: RedisServer, index: PrefixIndex
) -> None:
    keys = block_keys(20)
    cache = Cache()
    async with WorkerAnnouncer(server.settings, RECORD, cache.snapshot, TIMING) as announcer:
        cache.held = keys
        announcer.publish(block_keys(MAX_PENDING_EVENTS + 1, "short-lived"), [])
        await shows(index, keys, 20)
        assert announcer.counters.dropped_events > MAX_PENDING_EVENTS


async def test_read_only_and_full_servers_are_survived(
    server: RedisServer, redis: RedisConnection, index: PrefixIndex
) -> None:
    keys = block_keys(20)
    async with WorkerAnnouncer(
        server.settings, RECORD, Cache(keys[:10]).snapshot, TIMING
    ) as announcer:
        await shows(index, keys, 10)
        for break_it, repair_it in [
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (("REPLICAOF", "127.0.0.1", str(free_port())), ("REPLICAOF", "NO", "ONE")),
        ]:
            failures = announcer.counters.failures
            await redis.command(*break_it)
            announcer.publish(keys[10:], [])

            async def is_noticed(before: int = failures) -> bool:
                return announcer.counters.failures > before

            await eventually(is_noticed)
            await redis.command(*repair_it)
            await shows(index, keys, 20)
            announcer.publish([], keys[10:])
            await shows(index, keys, 10)


async def test_of_two_processes_with_one_id_the_newer_keeps_it(
    server: RedisServer, index: PrefixIndex
) -> None:
    keys = block_keys(4)
    old, new = worker(RECORD.worker_id, 1), worker(RECORD.worker_id, 2)
    async with WorkerAnnouncer(server.settings, old, Cache(keys).snapshot, TIMING) as zombie:
        await shows(index, keys, 4, epoch=1)
        async with WorkerAnnouncer(server.settings, new, Cache(keys).snapshot, TIMING) as announcer:
            await shows(index, keys, 4, epoch=2)

            async def has_tried() -> bool:
                return zombie.counters.gone >= 3

            await eventually(has_tried)
            assert not zombie.is_registered
            assert announcer.counters.gone == 0 and announcer.counters.registrations == 1
        await shows(index, keys, 4, epoch=1)


async def test_leaving_ends_the_lease_at_once(server: RedisServer, redis: RedisConnection) -> None:
    async with WorkerAnnouncer(server.settings, RECORD, Cache().snapshot, TIMING) as announcer:

        async def is_there() -> bool:
            return announcer.is_registered

        await eventually(is_there)
    assert await redis.command("HGET", KEYS.worker(RECORD.worker_id), "epoch") is None
    announcer.publish(block_keys(1), [])


async def test_a_frozen_redis_does_not_hold_up_leaving(server: RedisServer) -> None:
    async with WorkerAnnouncer(server.settings, RECORD, Cache().snapshot, TIMING):
        server.freeze()
        started = time.monotonic()
    assert time.monotonic() - started < 4
