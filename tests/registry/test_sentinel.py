"""A failover that Sentinel leads: one master, one replica, one sentinel."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.registry.announcer import AnnouncerTiming, WorkerAnnouncer
from octavo.registry.breaker import CircuitBreaker
from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.directory import DirectoryTiming, WorkerDirectory
from octavo.registry.index import PrefixIndex
from registry.redis_server import RedisServer, binary, eventually, free_port
from registry.workers import FINGERPRINT, RECORD, block_keys

KEYS = block_keys(300)
TIMING = AnnouncerTiming(lease_s=5, renew_s=0.2, flush_s=0.005, max_retry_s=0.2)


@contextmanager
def sentinel(folder: Path, master_port: int) -> Iterator[RedisSettings]:
    """A sentinel of the service `main`; the URL also names one that is not there."""
    folder.mkdir()
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor main 127.0.0.1 {master_port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary("redis-sentinel"), str(config)], stdout=log, stderr=log)
    try:
        yield RedisSettings(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/main/0")
    finally:
        process.kill()
        process.wait()


async def knows_its_replica(port: int) -> bool:
    redis = open_redis(RedisSettings(f"redis://127.0.0.1:{port}"), BACKGROUND)
    try:
        reply = await redis.command("INFO", "replication")
    finally:
        await redis.aclose()
    return isinstance(reply, dict) and reply.get("connected_slaves") == 1


async def sentinel_sees_the_replica(settings: RedisSettings) -> bool:
    address = settings.url.partition(",")[2].partition("/")[0]
    redis = open_redis(RedisSettings(f"redis://{address}"), BACKGROUND)
    try:
        reply = await redis.command("INFO", "sentinel")
    finally:
        await redis.aclose()
    return isinstance(reply, dict) and reply["master0"]["slaves"] == 1


async def test_a_failover_interrupts_nothing_but_the_index_and_that_not_for_long(
    tmp_path: Path,
) -> None:
    async def held() -> list[bytes]:
        return KEYS

    master = RedisServer(tmp_path / "master", port=free_port())
    replica = RedisServer(
        tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port), port=free_port()
    )
    breaker = CircuitBreaker(open_s=0.1)
    timing = DirectoryTiming(refresh_s=0.1)
    with master, replica, sentinel(tmp_path / "sentinel", master.port) as settings:
        async with (
            WorkerAnnouncer(settings, RECORD, held, TIMING) as announcer,
            WorkerDirectory(settings, [FINGERPRINT], timing=timing) as directory,
            PrefixIndex(settings, FINGERPRINT, budget_s=0.2, breaker=breaker) as index,
        ):

            async def finds_all() -> bool:
                found = await index.lookup(KEYS, [(RECORD.worker_id, RECORD.epoch)])
                return found == {RECORD.worker_id: 300}

            await eventually(finds_all)
            await eventually(lambda: knows_its_replica(master.port))
            await eventually(lambda: sentinel_sees_the_replica(settings), within_s=15)
            master.kill()
            failures = announcer.counters.failures

            async def is_noticed() -> bool:
                await finds_all()
                return announcer.counters.failures > failures

            await eventually(is_noticed)
            assert directory.workers() in ([RECORD], [])
            renewals = announcer.counters.renewals

            async def is_healed() -> bool:
                renewed = announcer.counters.renewals > renewals + 1
                return renewed and await finds_all() and directory.workers() == [RECORD]

            await eventually(is_healed, within_s=20)
