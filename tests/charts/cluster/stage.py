"""What every scenario begins and ends with: all pods ready, and each ended well at its deletion.

    python -m charts.cluster.SCENARIO MODEL CACHE ASKED     (inside `sandbox.inside`)

ASKED is a JSON file of questions. What is seen goes to standard output.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from charts.cluster import sandbox
from charts.cluster.cluster import Cluster
from charts.objects import objects_of


@dataclass(frozen=True)
class Stage:
    """A tiny model, a folder of compiled kernels, and what to ask."""

    model: Path
    cache: Path
    asked: list[dict[str, Any]]  # {"prompt", "token_ids"}, as `transformers` has it
    began: float

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    @asynccontextmanager
    async def cluster(
        self, values: Path, secrets: dict[str, dict[str, bytes]]
    ) -> AsyncIterator[Cluster]:
        """Every workload of the chart with these values, ready."""
        objects = objects_of(yaml.safe_load(values.read_text()))
        claims = {"octavo-models": self.model.parent, "kernels": self.cache}
        async with Cluster(objects, claims, secrets) as cluster:
            try:
                await cluster.apply()
                self.tell(f"ready: {', '.join(f'{pod.name} at {pod.ip}' for pod in cluster.pods)}")
                yield cluster
                cluster.check()
            except BaseException:
                print(cluster.logs(), flush=True)
                raise
        for pod in cluster.gone:
            self.tell(f"{pod.name} ended with {pod.exit_code} {pod.drained_s:.1f} s after deletion")
        bad = [pod for pod in cluster.gone if pod.exit_code != 0]
        assert not bad, "\n".join(pod.log_tail() for pod in bad)


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    logging.basicConfig(level=logging.WARNING)
    model, cache, asked = map(Path, sys.argv[1:])
    sandbox.prepare()
    stage = Stage(model, cache, json.loads(asked.read_text()), time.monotonic())

    async def run() -> None:
        await scenario(stage)

    asyncio.run(run())
