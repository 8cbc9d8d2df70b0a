import asyncio
import random

from octavo.registry.announcer import AnnouncerTiming, WorkerAnnouncer
from octavo.registry.directory import DirectoryTiming, WorkerDirectory
from registry.redis_server import RedisServer
from registry.workers import FINGERPRINT, RECORD, block_keys


async def test_closing_at_any_moment_ends_the_background_tasks(server: RedisServer) -> None:
    """Cancellations can be lost below us (see end_task); that must not hang a process."""
    rng = random.Random(8)
    keys = block_keys(2)

    async def held() -> list[bytes]:
        return keys

    hurried = AnnouncerTiming(renew_s=0.0005, flush_s=0, refresh_s=0.0005)
    for _ in range(150):
        async with (
            asyncio.timeout(10),
            WorkerDirectory(
                server.settings, [FINGERPRINT], timing=DirectoryTiming(refresh_s=0)
            ) as directory,
            WorkerAnnouncer(server.settings, RECORD, held, hurried) as announcer,
        ):
            await asyncio.sleep(rng.uniform(0, 0.005))
        for task in (directory._task, announcer._task):
            assert task is not None and task.done()
