"""One process of `octavo up`: started with a log of its own, ended by its pid, never orphaned."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from octavo.registry.embedded import LAUNCHER
from octavo.rpc.exposure import NO_ADDRESS


@dataclass(slots=True)
class Child:
    """A role's process. Output goes to `log`; the process dies with its parent."""

    name: str
    arguments: list[str]  # of the octavo command
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    metrics_address: str = NO_ADDRESS  # until it has told another one
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())),
                *(sys.executable, "-m", "octavo.cli.app", *self.arguments),
                env=os.environ | self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends all in order
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def log_tail(self, num_lines: int = 15) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])
