"""`octavo top` on a terminal of its own: it lives through its router's absence, and leaves on q."""

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import running_router
from rpc.certificates import write_folder

HOME = "\x1b[H"  # every frame begins with it
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """The other end of a process's terminal of 80 columns and 24 lines."""

    def __init__(self, process: asyncio.subprocess.Process, file: int) -> None:
        self.process = process
        self.file = file
        self.seen = ""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(file, self._read)

    def _read(self) -> None:
        try:
            self.seen += os.read(self.file, 65536).decode(errors="replace")
        except OSError:  # the process is gone
            asyncio.get_running_loop().remove_reader(self.file)
        self._news.set()

    async def until(self, condition: Callable[[str], bool], *, of_frame: bool = True) -> None:
        """Wait until the last whole frame, or all that came, is such."""
        async with asyncio.timeout(30):
            while True:
                frames = self.seen.split(HOME)
                if condition(frames[-2] if of_frame and len(frames) > 1 else self.seen):
                    return
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def top(*arguments: str) -> AsyncIterator[Terminal]:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.cli.app", "top", *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("leave", ["q", "SIGINT"])
async def test_a_router_that_comes_back_is_shown_again(
    served_model: ServedModel, unused_tcp_port: int, leave: str
) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    config = RouterConfig(model="tiny", listen_address=address)
    async with top("--address", address, "--interval", "0.1") as terminal:
        async with asyncio.timeout(30):
            assert await terminal.process.wait() == 1, "nobody listens there yet"
        await terminal.until(lambda seen: "octavo up" in seen, of_frame=False)
        assert ENTER_SCREEN not in terminal.seen
    router = running_router(config, served_model)
    await router.__aenter__()
    async with top("--address", address, "--interval", "0.1") as terminal:
        await terminal.until(lambda frame: "tiny" in frame and "0 workers" in frame)
        assert ENTER_SCREEN in terminal.seen
        echo = termios.tcgetattr(terminal.file)[3] & termios.ECHO
        assert not echo, "keys do not write into the picture"
        await router.__aexit__(None, None, None)
        await terminal.until(lambda frame: "no answer for" in frame and "tiny" in frame)
        async with running_router(config, served_model):
            await terminal.until(lambda frame: "tiny" in frame and "no answer" not in frame)
            if leave == "q":
                os.write(terminal.file, b"q")
            else:
                terminal.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(10):
                assert await terminal.process.wait() == 0
        await terminal.until(lambda seen: LEAVE_SCREEN in seen, of_frame=False)
        assert termios.tcgetattr(terminal.file)[3] & termios.ECHO, "the terminal is as it was"


async def test_another_size_is_another_picture(start_fleet: Any) -> None:
    async with start_fleet([5]) as fleet, top("--address", fleet.address) as terminal:
        await terminal.until(lambda frame: "2 workers" in frame and "dtype" not in frame)
        fcntl.ioctl(terminal.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        terminal.process.send_signal(signal.SIGWINCH)
        await terminal.until(lambda frame: "busy" in frame and "dtype" in frame)


async def test_an_encrypted_router_is_asked_with_the_options_of_generate(
    served_model: ServedModel, unused_tcp_port: int, tmp_path: Path
) -> None:
    files = write_folder(tmp_path, trustme.CA(), "127.0.0.1")
    address = f"127.0.0.1:{unused_tcp_port}"
    config = RouterConfig(
        model="tiny",
        listen_address=address,
        tls_cert_file=files / "tls.crt",
        tls_key_file=files / "tls.key",
        tls_client_ca_file=files / "ca.crt",
    )
    async with running_router(config, served_model):
        flags = ("--address", address, "--interval", "0.1")
        trust = ("--ca-file", str(files / "ca.crt"))
        own = ("--cert-file", str(files / "tls.crt"), "--key-file", str(files / "tls.key"))
        async with top(*flags, *trust, *own) as terminal:
            await terminal.until(lambda frame: "tiny" in frame and "0 workers" in frame)
        for too_few in ((), trust, (*trust, *own[:2])):
            async with top(*flags, *too_few) as terminal, asyncio.timeout(30):
                assert await terminal.process.wait() == 1, too_few
