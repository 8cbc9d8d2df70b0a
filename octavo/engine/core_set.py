"""Sets of CPU cores: as text, as this machine has them, and shared out among workers.

"0-3,8"  <->  (0, 1, 2, 3, 8)
"""

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

CoreSet = tuple[int, ...]

_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_SIBLINGS = "cpu{core}/topology/thread_siblings_list"
CPU_FOLDER = Path("/sys/devices/system/cpu")
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


def parse_cores(text: str) -> CoreSet:
    """Read a list of numbers and ranges, in ascending order.

    Raises:
        ValueError: it is no such list.
    """
    cores: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"cores are given as 0-3,8, got {text!r}")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ValueError(f"cores are given as 0-3,8, got {text!r}")
        cores |= set(range(first, last + 1))
    return tuple(sorted(cores))


def format_cores(cores: Iterable[int]) -> str:
    """The shortest text that parses to these cores."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def allowed_cores() -> CoreSet:
    """Every logical core that this process may use; empty where the system does not say."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def physical_cores(cores: Iterable[int], folder: Path = CPU_FOLDER) -> CoreSet:
    """One logical core of each physical one: two threads of a core share what a kernel needs."""
    chosen: dict[str, int] = {}
    for core in sorted(cores):
        try:
            siblings = (folder / _SIBLINGS.format(core=core)).read_text().strip()
        except OSError:
            siblings = str(core)
        chosen.setdefault(siblings, core)
    return tuple(sorted(chosen.values()))


def usable_cores(cores: Iterable[int], quota_file: Path = CPU_QUOTA_FILE) -> CoreSet:
    """The first of these cores, as many as the container's share of processor time keeps busy."""
    cores = tuple(cores)
    try:
        quota, period = quota_file.read_text().split()
        return cores[: max(1, int(quota) // int(period))]
    except (OSError, ValueError):  # no such file, or no limit ("max")
        return cores


def llm_cores(num_threads: int | None) -> CoreSet:
    """Those of an engine that has this machine for itself, num_threads of them at most.

    Raises:
        ValueError: num_threads is not positive.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    return usable_cores(physical_cores(allowed_cores()))[:num_threads]


def share_cores(cores: Iterable[int], num_prefills: int, num_decodes: int) -> list[CoreSet]:
    """Cores of each worker, prefill workers first.

    Each gets as many as the others, and decode workers the rest. With fewer cores than workers they
    take turns.
    """
    cores = tuple(cores)
    num_workers = num_prefills + num_decodes
    if not cores:
        return [()] * num_workers
    if len(cores) < num_workers:
        return [(cores[index % len(cores)],) for index in range(num_workers)]
    each, rest = divmod(len(cores), num_workers)
    sizes = [each] * num_prefills
    sizes += [each + rest // num_decodes + (i < rest % num_decodes) for i in range(num_decodes)]
    ends = list(itertools.accumulate(sizes))
    return [cores[end - size : end] for size, end in zip(sizes, ends, strict=True)]
