"""Processes of the measured engines: started with their libraries, ended by their pid.

Process is a server with a log; LineWorker answers JSON lines, for engines without a server.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def preloads(venv: Path | None) -> str:
    """tcmalloc and Intel OpenMP, where installed: every CPU engine is faster with them."""
    found = [str(TCMALLOC)] if TCMALLOC.exists() else []
    if venv is not None and (venv / "lib/libiomp5.so").exists():
        found.append(str(venv / "lib/libiomp5.so"))
    return ":".join(found)


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware; torch emulates it elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return True
    words = cpuinfo.read_text().split()
    return "avx512_bf16" in words or "amx_bf16" in words


def cpu_seconds(pid: int) -> float:
    """CPU time so far of a process and all that descend from it."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started in this block stays on these cores, with all that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_group(process: "subprocess.Popen[Any]") -> None:
    """SIGTERM to a process and its group, SIGKILL if that is not heard."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Process:
    """A server in a session of its own; ending it ends its children."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command,
            env=os.environ | env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.log = log

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid)

    def check(self) -> None:
        if self._process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the server ended with {self._process.returncode}:\n{tail}")

    def end(self) -> None:
        end_group(self._process)
        self._log.close()


class LineWorker:
    """A child that answers each JSON line with one; what else it prints goes to its log."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=os.environ | env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid)

    def ask(self, request: dict[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        tail = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the process of {self.log.stem} ended:\n{tail}")

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        end_group(self._process)
