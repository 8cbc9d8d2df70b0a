"""A reply that comes too late must never be taken for the reply to another call."""

import asyncio
import random
from pathlib import Path

import pytest

from octavo.registry.connection import BACKGROUND, REQUEST_PATH, open_redis
from octavo.registry.errors import RedisUnavailable
from octavo.registry.index import PrefixIndex
from registry.delay_proxy import DelayProxy
from registry.redis_server import RedisServer, free_port
from registry.workers import FINGERPRINT, block_keys, lease_of, worker


async def test_a_cancelled_command_never_shifts_replies(tmp_path: Path) -> None:
    rng = random.Random(5)
    with RedisServer(tmp_path / "redis", port=free_port()) as server:
        async with DelayProxy(server.port) as proxy:
            redis = open_redis(proxy.settings, BACKGROUND)
            for number in range(50):
                await redis.command("SET", f"key-{number}", f"value-{number}")
            proxy.delay_s = 0.01
            for number in range(100):
                cancelled = asyncio.create_task(redis.command("GET", f"key-{number % 50}"))
                await asyncio.sleep(rng.uniform(0, 0.015))
                cancelled.cancel()
                other = (number + 1) % 50
                assert await redis.command("GET", f"key-{other}") == f"value-{other}".encode()
                await asyncio.gather(cancelled, return_exceptions=True)
            await redis.aclose()


async def test_a_timed_out_command_never_shifts_replies(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", port=free_port()) as server:
        async with DelayProxy(server.port) as proxy:
            redis = open_redis(proxy.settings, REQUEST_PATH)
            await redis.command("SET", "a", "1")
            await redis.command("SET", "b", "2")
            proxy.delay_s = 0.5
            with pytest.raises(RedisUnavailable):
                await redis.command("GET", "a")
            proxy.delay_s = 0
            assert await redis.command("GET", "b") == b"2"
            await redis.aclose()


async def test_a_cancelled_or_late_lookup_never_answers_another_prompt(tmp_path: Path) -> None:
    """Prompt n has n blocks, so that a shifted reply is seen."""
    rng = random.Random(6)
    prompts = [block_keys(number + 1, f"prompt {number}") for number in range(8)]
    with RedisServer(tmp_path / "redis", port=free_port()) as server:
        redis = open_redis(server.settings, BACKGROUND)
        lease = lease_of(redis, worker("w", 1))
        await lease.register()
        for prompt in prompts:
            await lease.publish(prompt)
        await redis.aclose()
        async with (
            DelayProxy(server.port) as proxy,
            PrefixIndex(proxy.settings, FINGERPRINT) as index,
        ):
            num_found = 0
            for round_number in range(120):
                proxy.delay_s = rng.choice([0, 0.001, 0.03])
                number = round_number % len(prompts)
                call = asyncio.create_task(index.lookup(prompts[number], [("w", 1)]))
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.uniform(0, 0.01))
                    call.cancel()
                    continue
                found = await call
                assert found in ({}, {"w": number + 1})
                num_found += bool(found)
            assert num_found > 10 and index.counters.over_budget > 5
            assert index.counters.failures == index.counters.skipped == 0
