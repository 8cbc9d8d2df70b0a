"""Drives the real service, `octavo up`, and notes what each of its processes spent."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from load import Sample, random_prompts, run_closed_loop
from peers import Octavo
from simulator.step_times import StepReader, StepTime

WORKERS = ("prefill-worker", "decode-worker")
ROLES = (*WORKERS, "router")


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run."""

    prefills: int
    decodes: int
    num_requests: int
    input_tokens: int = 128
    output_tokens: int = 128
    concurrency: int | None = None
    per_second: float | None = None  # Poisson, instead of a closed loop

    @property
    def name(self) -> str:
        load = f"{self.concurrency} at once"
        if self.per_second is not None:
            load = f"Poisson {self.per_second:.2f}/s"
        return f"{self.prefills}P{self.decodes}D, {load}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples of one run, CPU seconds and steps by role; the client is this process."""

    samples: list[Sample]
    cpu_s: dict[str, float]
    steps: dict[str, list[StepTime]]
    others_share: float  # of the machine's CPU time, that went to processes not ours

    def steps_s(self, role: str) -> float:
        """CPU seconds of all steps of a role."""
        return sum(step.cpu_s for step in self.steps[role])

    @property
    def all_steps(self) -> list[StepTime]:
        return [step for steps in self.steps.values() for step in steps]


class RealService:
    """A running service of one size."""

    def __init__(self, octavo: Octavo, folder: Path) -> None:
        """folder: of its workers' logs."""
        self._octavo = octavo
        self._seed = 0
        self._logs = [
            (role, StepReader(path))
            for role in WORKERS
            for path in folder.glob(f"{role.removesuffix('-worker')}-*.log")
        ]

    async def run(self, case: Case) -> Measured:
        self._seed += 1
        self._new_steps()
        prompts = random_prompts(case.num_requests, case.input_tokens, 40_000, self._seed)
        before, idle_before, began = self._cpu_s(), _idle_s(), time.monotonic()
        if case.per_second is None:
            assert case.concurrency is not None
            samples = await run_closed_loop(
                self._octavo.send, prompts, case.concurrency, case.output_tokens
            )
        else:
            samples = await self._open_loop(prompts, case.per_second, case.output_tokens)
        wall_s = time.monotonic() - began
        cpu_s = {role: spent - before[role] for role, spent in self._cpu_s().items()}
        total_s = wall_s * (os.cpu_count() or 1)
        others_s = total_s - (_idle_s() - idle_before) - sum(cpu_s.values())
        return Measured(samples, cpu_s, self._new_steps(), max(others_s, 0.0) / total_s)

    async def _open_loop(
        self, prompts: list[list[int]], per_second: float, max_tokens: int
    ) -> list[Sample]:
        gaps = np.random.default_rng((self._seed, 3)).exponential(1 / per_second, len(prompts))
        began = time.perf_counter()

        async def one(prompt: list[int], at_s: float) -> Sample:
            await asyncio.sleep(max(began + at_s - time.perf_counter(), 0.0))
            sample = Sample(time.perf_counter())
            async for count in self._octavo.send(prompt, max_tokens):
                sample.arrivals.append((time.perf_counter(), count))
            return sample

        tasks = map(one, prompts, np.cumsum(gaps).tolist())
        return list(await asyncio.gather(*tasks))

    @property
    def poisson_seed(self) -> int:
        """Of the last open loop."""
        return self._seed

    def _new_steps(self) -> dict[str, list[StepTime]]:
        steps: dict[str, list[StepTime]] = {role: [] for role in WORKERS}
        for role, log in self._logs:
            steps[role] += log.read()
        return steps

    def _cpu_s(self) -> dict[str, float]:
        spent = dict.fromkeys(ROLES, 0.0)
        for process in psutil.Process().children(recursive=True):
            role = next((role for role in ROLES if role in process.cmdline()), None)
            if role is not None:
                times = process.cpu_times()
                spent[role] += times.user + times.system
        return spent | {"client": time.process_time()}


def _idle_s() -> float:
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


@asynccontextmanager
async def real_service(model: Path, work: Path, case: Case) -> AsyncIterator[RealService]:
    """Start `octavo up` of the case's size, and end it."""
    # Simulated workers compute on their own core alone: lent ones are a laptop's, not a fleet's.
    flags = ["--no-lend-cores", "--log-level", "debug", "--log-format", "json"]
    flags += ["--prefill-workers", str(case.prefills), "--decode-workers", str(case.decodes)]
    octavo = Octavo(model, work, None, [*flags, "--run-dir", str(work)])
    try:
        await octavo.ready()
        yield RealService(octavo, work)
    finally:
        await octavo.close()
