"""What the registry's own scripts cost an embedded Redis: its CPU time over known work.

look-ups of n keys by w workers, batches of 128 keys --> calls, keys, fields --> least squares
"""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.embedded import EmbeddedRedis
from octavo.registry.index import PrefixIndex
from octavo.registry.lease import WorkerLease
from octavo.registry.records import WorkerRecord

FINGERPRINT = "simulated"
NUM_HELD = 128  # keys of the one worker that is registered, one batch
FLEETS = (16, 256)
LOOKUPS = 400
PUBLISHES = 100


async def measured_redis_us() -> dict[str, float]:
    """Microseconds of Redis a call, a key and a field.

    Raises:
        EmbeddedRedisUnavailable: there is no redis-server here.
    """
    async with EmbeddedRedis() as server:
        settings = RedisSettings(server.url)
        redis = open_redis(settings, BACKGROUND)
        work: list[tuple[float, float, float]] = []  # calls, keys, fields
        spent: list[float] = []

        async def note(
            count: int, size: tuple[int, int], action: Callable[[], Awaitable[object]]
        ) -> None:
            before = _cpu_s(server.pid)
            for _ in range(count):
                await action()
            spent.append(_cpu_s(server.pid) - before)
            work.append((count, count * size[0], count * size[1]))

        try:
            lease = WorkerLease(redis, _record(), lease_s=60, block_life_s=3600)
            await lease.register()
            held = [_key(index) for index in range(NUM_HELD)]
            await note(PUBLISHES, (NUM_HELD, 0), lambda: lease.publish(held))
            async with PrefixIndex(settings, FINGERPRINT, budget_s=5.0) as index:
                for size in FLEETS:
                    workers = [("prefill-0", 1)] + [(f"other-{n}", 1) for n in range(size - 1)]
                    await index.lookup(held, workers)
                    unknown = [_key(-1)]
                    fields = size + NUM_HELD - 1  # after the first key only its holder is asked for
                    await note(LOOKUPS, (1, size), lambda: index.lookup(unknown, workers))  # noqa: B023
                    await note(LOOKUPS, (NUM_HELD, fields), lambda: index.lookup(held, workers))  # noqa: B023
        finally:
            await redis.aclose()
    fitted, *_ = np.linalg.lstsq(np.array(work), np.array(spent), rcond=None)
    call_us, key_us, field_us = (max(float(seconds), 0.0) * 1e6 for seconds in fitted)
    return {"call_us": call_us, "key_us": key_us, "field_us": field_us}


def _cpu_s(pid: int) -> float:
    """Of the main thread, which runs the scripts; Linux counts it in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _record() -> WorkerRecord:
    return WorkerRecord(
        worker_id="prefill-0",
        role="prefill",
        address="127.0.0.1:1",
        epoch=1,
        model="simulated",
        fingerprint=FINGERPRINT,
        layout="one",
        capacity_blocks=NUM_HELD,
        max_context_tokens=2048,
    )


def _key(index: int) -> bytes:
    return hashlib.blake2b(str(index).encode(), digest_size=16).digest()
