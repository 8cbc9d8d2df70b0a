"""Whatever stands in Redis, or answers in its place, costs speed only."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from octavo.registry.announcer import AnnouncerTiming, WorkerAnnouncer
from octavo.registry.breaker import CircuitBreaker
from octavo.registry.connection import Argument, RedisConnection, RedisSettings
from octavo.registry.directory import DirectoryTiming, WorkerDirectory
from octavo.registry.index import PrefixIndex
from octavo.registry.keys import ModelKeys
from octavo.registry.records import FIELDS
from registry.redis_server import RedisServer, eventually, free_port
from registry.workers import FINGERPRINT, RECORD, block_keys

KEYS = ModelKeys.of(FINGERPRINT)
BLOCKS = block_keys(16)
WORKERS = [(RECORD.worker_id, RECORD.epoch), ("other", 3)]
TIMING = AnnouncerTiming(lease_s=5, renew_s=0.02, flush_s=0.002, max_retry_s=0.05)


async def scribble(redis: RedisConnection, rng: random.Random, key: bytes) -> None:
    """Put something of a random type and content under one key."""
    noise = [rng.randbytes(rng.randrange(0, 30)) for _ in range(6)]
    match rng.randrange(6):
        case 0:
            await overwrite(redis, key, "SET", noise[0])
        case 1:
            await overwrite(redis, key, "HSET", *noise)
        case 2:
            await overwrite(redis, key, "SADD", *noise)
        case 3:
            await overwrite(redis, key, "RPUSH", *noise)
        case 4:
            fields = [item for name in FIELDS for item in (name, rng.randbytes(8))]
            await overwrite(redis, key, "HSET", *fields)
        case 5:
            epoch = rng.choice([b"0", b"-1", b"1e9", b"9" * 40, rng.randbytes(9)])
            await overwrite(redis, key, "HSET", RECORD.worker_id, epoch, "sequence", noise[1])


async def overwrite(redis: RedisConnection, key: bytes, command: str, *values: Argument) -> None:
    script = "redis.call('DEL', KEYS[1]) return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"
    await redis.command("EVAL", script, 1, key, command, *values)


async def test_random_bytes_under_every_key_harm_nobody(
    server: RedisServer, redis: RedisConnection
) -> None:
    rng = random.Random(7)
    names = [KEYS.workers, KEYS.worker(RECORD.worker_id), *(KEYS.block(key) for key in BLOCKS)]

    async def held() -> list[bytes]:
        return BLOCKS

    async with (
        WorkerAnnouncer(server.settings, RECORD, held, TIMING) as announcer,
        WorkerDirectory(
            server.settings, [FINGERPRINT], timing=DirectoryTiming(refresh_s=0.005)
        ) as directory,
        PrefixIndex(
            server.settings, FINGERPRINT, budget_s=5, breaker=CircuitBreaker(max_failures=10**9)
        ) as index,
    ):
        for round_number in range(60):
            for name in names:
                await scribble(redis, rng, name)
            if rng.random() < 0.5:  # let the set of ids name records that exist, with noise in them
                await overwrite(redis, KEYS.workers, "SADD", RECORD.worker_id, rng.randbytes(9))
            announcer.publish(BLOCKS[::2], BLOCKS[1::2])
            found = await index.lookup(BLOCKS, WORKERS)
            assert set(found) <= {RECORD.worker_id}, round_number
            assert all(worker == RECORD for worker in directory.workers())
        assert directory.counters.malformed > 0
        announcer.publish(BLOCKS, [])

        async def is_repaired() -> bool:
            found = await index.lookup(BLOCKS, WORKERS)
            return found == {RECORD.worker_id: 16} and directory.workers() == [RECORD]

        await eventually(is_repaired)


@contextlib.asynccontextmanager
async def impostor(answer: bytes) -> AsyncIterator[RedisSettings]:
    """Answers everything with the same bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                writer.write(answer)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield RedisSettings(f"redis://127.0.0.1:{port}/0")
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"*1\r\n*2\r\n:99999\r\n:-4\r\n",
        b"*1\r\n*1\r\n:1\r\n",
        b"*1\r\n$-1\r\n",
        b":5\r\n",
        b"+OK\r\n",
        b"-GONE fishing\r\n",
        b"-LOADING Redis is loading\r\n",
        b"$abc\r\n",
        b"*3\r\n$3\r\n\xff\xfe\xfd\r\n:1\r\n*0\r\n",
        b"\x00\xff\x00\r\n",
        b"",
    ],
)
async def test_answers_that_redis_never_gives_are_nothing_found(answer: bytes) -> None:
    async def held() -> list[bytes]:
        return BLOCKS

    async with (
        impostor(answer) as settings,
        WorkerDirectory(
            settings, [FINGERPRINT], timing=DirectoryTiming(refresh_s=0.005)
        ) as directory,
        WorkerAnnouncer(settings, RECORD, held, TIMING) as announcer,
        PrefixIndex(settings, FINGERPRINT) as index,
    ):
        for _ in range(5):
            announcer.publish(BLOCKS, [])
            assert await index.lookup(BLOCKS, WORKERS) == {}
        assert directory.workers() == []
        for task in (announcer._task, directory._task):
            assert task is not None and not task.done()
