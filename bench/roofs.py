"""What the machine can do at this moment: stream read and matrix products on the same cores.

    with RoofProbe(cores) as probe:
        roofs = probe.measure()        # once a round, while the engines are idle

The probe is a process of its own, so that no thread of it spins beside the engines.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table

STREAM_BYTES = 256 << 20
PRODUCT_S = 0.02  # a matrix product is made larger until it takes this long
USABLE_SHARE = 0.7  # of the run's best; a round below it is left out


@dataclass(frozen=True, slots=True)
class Roofs:
    """One measurement on all given cores together."""

    stream_gb_per_s: float
    bf16_gflop_per_s: float
    float32_gflop_per_s: float


def usable_rounds(roofs: Sequence[Roofs]) -> list[bool]:
    """Which rounds ran on an undisturbed machine: every roof near the run's best."""
    table = [tuple(asdict(round_roofs).values()) for round_roofs in roofs]
    best = [max(column) for column in zip(*table, strict=True)]
    return [
        all(value >= USABLE_SHARE * top for value, top in zip(row, best, strict=True))
        for row in table
    ]


def print_roofs(roofs: Sequence[Roofs]) -> None:
    table = Table(title="roofs of the same cores, measured inside each round")
    for heading in ("round", "stream read, GB/s", "bf16 GFLOP/s", "float32 GFLOP/s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for number, (row, usable) in enumerate(zip(roofs, usable_rounds(roofs), strict=True)):
        cells = [f"{value:.1f}" for value in asdict(row).values()]
        table.add_row(str(number), *cells, "" if usable else "[red]disturbed, left out[/]")
    Console(width=110).print(table)


class RoofProbe:
    """Measures in a child process pinned to `cores`, by default all of them."""

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        chosen = sorted(cores if cores is not None else os.sched_getaffinity(0))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--cores", ",".join(map(str, chosen))],
            env=os.environ | {"OMP_NUM_THREADS": str(len(chosen)), "OMP_WAIT_POLICY": "passive"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> Roofs:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that measures the roofs ended")
        return Roofs(**json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def best_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def measure_here() -> Roofs:
    """The roofs of this process's cores and threads."""
    import torch

    memory = torch.ones(STREAM_BYTES // 4)
    stream = STREAM_BYTES / best_seconds(memory.sum) / 1e9
    flops: dict[torch.dtype, float] = {}
    for dtype in (torch.bfloat16, torch.float32):
        size, seconds = 256, 0.0
        while seconds < PRODUCT_S and size < 4096:
            size *= 2
            left = torch.randn(size, size).to(dtype)
            right = torch.randn(size, size).to(dtype)
            seconds = best_seconds(lambda a=left, b=right: a @ b.T, repeats=3)  # type: ignore[misc]
        flops[dtype] = 2 * size**3 / seconds / 1e9
    return Roofs(stream, flops[torch.bfloat16], flops[torch.float32])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", help="default: all this process may use")
    args = parser.parse_args()
    if args.cores is None:
        with RoofProbe() as probe:
            print_roofs([probe.measure()])
        return
    cores = {int(core) for core in args.cores.split(",")}
    os.sched_setaffinity(0, cores)
    for _ in sys.stdin:
        print(json.dumps(asdict(measure_here())), flush=True)


if __name__ == "__main__":
    main()
