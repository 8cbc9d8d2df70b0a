import asyncio
import time
from pathlib import Path

from octavo.registry.breaker import CircuitBreaker
from octavo.registry.connection import BACKGROUND, RedisConnection, open_redis
from octavo.registry.index import PrefixIndex
from octavo.registry.keys import ModelKeys
from registry.redis_server import RedisServer, eventually, free_port
from registry.workers import FINGERPRINT, RECORD, block_keys, lease_of

KEYS = block_keys(8)
WORKERS = [(RECORD.worker_id, RECORD.epoch)]
FOUND = {RECORD.worker_id: 8}


async def fill(redis: RedisConnection) -> None:
    lease = lease_of(redis, RECORD)
    await lease.register()
    await lease.publish(KEYS)


async def test_a_frozen_redis_costs_the_budget_and_then_nothing(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    breaker = CircuitBreaker(open_s=0.3)
    async with PrefixIndex(server.settings, FINGERPRINT, breaker=breaker) as index:

        async def finds() -> bool:
            return await index.lookup(KEYS, WORKERS) == FOUND

        await eventually(finds)
        server.freeze()
        started = time.monotonic()
        num_lookups = 0
        while not breaker.is_open:
            assert await index.lookup(KEYS, WORKERS) == {}
            num_lookups += 1
        # 20 ms each, with much room for a busy machine; never the call's own timeouts.
        assert (time.monotonic() - started) / num_lookups < 0.15
        assert index.counters.over_budget >= 5
        skipped = index.counters.skipped
        assert await index.lookup(KEYS, WORKERS) == {}
        assert index.counters.skipped == skipped + 1
        server.thaw()
        await eventually(finds)
        assert not breaker.is_open


async def test_a_spent_budget_is_no_failure(server: RedisServer, redis: RedisConnection) -> None:
    await fill(redis)
    breaker = CircuitBreaker(max_failures=1)
    async with PrefixIndex(
        server.settings, FINGERPRINT, budget_s=0.000001, breaker=breaker
    ) as index:
        for _ in range(20):
            await index.lookup(KEYS, WORKERS)
        while index._calls:
            await asyncio.wait(set(index._calls))
        assert index.counters.over_budget > 10
        assert index.counters.failures == 0 and not breaker.is_open


async def test_a_cancelled_lookup_is_no_failure(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    breaker = CircuitBreaker(max_failures=1)
    async with PrefixIndex(server.settings, FINGERPRINT, budget_s=5, breaker=breaker) as index:
        for _ in range(20):
            lookup = asyncio.create_task(index.lookup(KEYS, WORKERS))
            await asyncio.sleep(0)
            lookup.cancel()
            await asyncio.gather(lookup, return_exceptions=True)
        assert await index.lookup(KEYS, WORKERS) == FOUND
        assert index.counters.failures == 0 and not breaker.is_open


async def test_a_burst_takes_turns_on_a_few_connections(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    breaker = CircuitBreaker(max_failures=10**9)
    async with PrefixIndex(server.settings, FINGERPRINT, budget_s=30, breaker=breaker) as index:
        results = await asyncio.gather(*(index.lookup(KEYS, WORKERS) for _ in range(300)))
        failures = index.counters.failures  # a busy machine may take too long to connect
        assert sum(result == FOUND for result in results) == 300 - failures and failures < 100
        clients = await redis.command("INFO", "clients")
        assert isinstance(clients, dict) and clients["connected_clients"] <= 8 + 1


async def test_a_burst_on_a_frozen_redis_ends_within_the_budget(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    async with PrefixIndex(server.settings, FINGERPRINT) as index:
        server.freeze()
        started = time.monotonic()
        results = await asyncio.gather(*(index.lookup(KEYS, WORKERS) for _ in range(300)))
        # Waiting for turns that never end would take 11 s.
        assert time.monotonic() - started < 2
        assert results == [{}] * 300
        server.thaw()


async def test_without_redis_a_lookup_finds_nothing_quickly_until_it_is_back(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path / "redis", port=free_port())
    breaker = CircuitBreaker(open_s=0.05)
    async with PrefixIndex(server.tcp_settings, FINGERPRINT, breaker=breaker) as index:
        for _ in range(10):
            assert await index.lookup(KEYS, WORKERS) == {}
        assert breaker.is_open and index.counters.failures >= 5
        with server:
            redis = open_redis(server.settings, BACKGROUND)
            await fill(redis)
            await redis.aclose()

            async def finds() -> bool:
                return await index.lookup(KEYS, WORKERS) == FOUND

            await eventually(finds)


async def test_restarts_of_redis_between_lookups_are_survived(
    server: RedisServer, redis: RedisConnection
) -> None:
    async with PrefixIndex(server.settings, FINGERPRINT, budget_s=5) as index:
        for _ in range(3):
            fresh = open_redis(server.settings, BACKGROUND)
            await fill(fresh)
            await fresh.aclose()
            assert await index.lookup(KEYS, WORKERS) == FOUND
            server.kill()
            server.start()
            assert await index.lookup(KEYS, WORKERS) == {}
        # The look-up that meets the dead connection may fail; the next one has a new connection.
        assert index.counters.failures <= 3


async def test_a_read_only_replica_answers_lookups(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    await redis.command("REPLICAOF", "127.0.0.1", str(free_port()))
    async with PrefixIndex(server.settings, FINGERPRINT, budget_s=5) as index:
        assert await index.lookup(KEYS, WORKERS) == FOUND


async def test_nothing_to_ask_asks_nothing(server: RedisServer) -> None:
    async with PrefixIndex(server.settings, FINGERPRINT) as index:
        assert await index.lookup([], WORKERS) == {}
        assert await index.lookup(KEYS, []) == {}
        assert index.counters.wait_s.count == index.call_s.count == 0


async def test_an_index_of_another_model_finds_nothing(
    server: RedisServer, redis: RedisConnection
) -> None:
    await fill(redis)
    async with PrefixIndex(server.settings, "another model", budget_s=5) as index:
        assert await index.lookup(KEYS, WORKERS) == {}
    assert ModelKeys.of("another model") != ModelKeys.of(FINGERPRINT)
