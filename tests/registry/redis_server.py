"""Real redis-server processes for tests, and what tests need around them."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest

from octavo.registry.connection import RedisSettings
from octavo.registry.embedded import find_redis_server

START_TIMEOUT_S = 10.0


def binary(name: str) -> str:
    """A program of Debian's packages; for a plain redis-server the bundled one will do."""
    path = shutil.which(name)
    if path is None and name == "redis-server":
        path = str(find_redis_server())
    if path is None:
        reason = (
            f"{name} is not installed; TLS, Sentinel and Cluster run Debian's redis and openssl"
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def need_directive(name: str) -> None:
    """Skip where redis-server lacks it: Debian's has TLS and cluster-port, the bundled one not."""
    path = binary("redis-server")
    if name.encode() not in Path(path).resolve().read_bytes():
        pytest.skip(f"{path} knows no {name}; Debian's redis-server does")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One redis-server on a unix socket, and on a loopback port when it is given one."""

    def __init__(self, folder: Path, *options: str, port: int = 0, program: str = "redis-server"):
        self.folder = folder
        self.port = port
        self.socket_path = folder / "redis.sock"
        self._program = program
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> RedisSettings:
        return RedisSettings(f"unix://{self.socket_path}")

    @property
    def tcp_settings(self) -> RedisSettings:
        return RedisSettings(f"redis://127.0.0.1:{self.port}/0")

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket_path.unlink(missing_ok=True)
        listen = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        files = ["--unixsocket", str(self.socket_path), "--dir", str(self.folder)]
        command = [binary(self._program), *listen, *files, *self._options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"redis-server did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.005)

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(str(self.socket_path))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


async def eventually(check: Callable[[], Awaitable[bool]], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await check():
            await asyncio.sleep(0.01)
