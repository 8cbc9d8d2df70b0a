"""Runs small services, then simulates the same loads and says how far that is off.

1P1D, 1, 4 and 24 at once --> overhead --+
                                         +--> simulated run  <-- error --+
measured run --steps' times--> cost -----+                               |
     +-------------------------------------------------------------------+

So what is tested is all but the speed of a step: batches, placement, hand-off, shared cores.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from load import summarize
from octavo.checkpoint.config import load_config
from octavo.engine.build import build_layout, choose_dtype
from octavo.engine.config import EngineConfig
from octavo.engine.step_budget import default_step_tokens
from octavo.transfer.digest import block_digests
from simulator.cost import MeasuredCost
from simulator.figures import error_percent, latencies
from simulator.overhead import Overhead
from simulator.run import Outcome, ServiceSpec, simulate
from simulator.served import Case, RealService, real_service
from simulator.step_times import fit_cost
from simulator.workload import equal_requests, poisson

GOAL_PERCENT = 5.0
FIGURES = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p90_ms", "itl_p50_ms", "itl_p90_ms")
NUM_CORES = 2
CALIBRATION = (Case(1, 1, 8, concurrency=4), Case(1, 1, 48, concurrency=24))
LEVELS = (8, 16, 32)
COPIED_BLOCKS, COPIES = 64, 7
POISSON_LOAD = 0.6  # of the throughput at 16 at once
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """One load, simulated and measured: medians of its runs."""

    case: Case
    simulated: dict[str, float]
    measured: dict[str, float]
    others_share: float

    def row(self) -> dict[str, Any]:
        errors = {k: error_percent(self.simulated[k], self.measured[k]) for k in FIGURES}
        return asdict(self) | {"name": self.case.name, "error_percent": errors}


def base_spec(model: Path) -> ServiceSpec:
    """The demo service whose steps cost nothing yet."""
    config, device = load_config(model), torch.device("cpu")
    dtype = choose_dtype("auto", config, device)
    layout = build_layout(EngineConfig(model=str(model)), dtype, config, model)
    step_tokens = default_step_tokens(config, device)
    return ServiceSpec(
        num_prefills=1,
        num_decodes=1,
        cost=MeasuredCost(((1, 0.0),), ((1, 0.0),), 0.0),
        block_size=layout.block_size,
        block_bytes=layout.block_bytes,
        num_blocks=4096,
        prefill_step_tokens=step_tokens,
        decode_step_tokens=step_tokens,
        max_model_len=config.max_position_embeddings,
        overhead=Overhead(copy_s_per_byte=copy_s_per_byte(layout.block_bytes)),
        num_shared_cores=NUM_CORES,
        use_index=False,  # these prompts share nothing
    )


def copy_s_per_byte(block_bytes: int) -> float:
    """Seconds a byte to copy blocks and take their digests: each side of a hand-off does so."""
    blocks = [memoryview(bytearray(block_bytes)) for _ in range(COPIED_BLOCKS)]
    target, took = bytearray(block_bytes), []
    for _ in range(COPIES):
        began = time.thread_time()
        for block in blocks:
            block_digests([block])
            target[:] = block
        took.append(time.thread_time() - began)
    return median(took) / (COPIED_BLOCKS * block_bytes)


def predict(spec: ServiceSpec, case: Case, seed: int = 0) -> Outcome:
    spec = replace(spec, num_prefills=case.prefills, num_decodes=case.decodes)
    requests = equal_requests(case.num_requests, case.input_tokens, case.output_tokens)
    if case.per_second is not None:
        requests = poisson(requests, case.per_second, seed)
    return simulate(spec, requests, concurrency=case.concurrency)


async def calibrate(spec: ServiceSpec, service: RealService) -> Overhead:
    """From requests of one token, of one caller, of few and of many.

    What a process spent beyond its steps is its overhead, some a step and some a token; what a lone
    request took beyond the simulation so far is waiting.
    """
    single = Case(1, 1, 24, output_tokens=1, concurrency=1)
    took = await service.run(single)
    request_cpu_s = (took.cpu_s["router"] + took.cpu_s["client"]) / single.num_requests
    prefill_cpu_s = took.cpu_s["prefill-worker"] - took.steps_s("prefill-worker")
    work: list[tuple[int, int]] = []  # steps, tokens
    front_s: list[float] = []
    decode_s: list[float] = []
    for case in CALIBRATION:
        took = await service.run(case)
        work.append((len(took.all_steps), case.num_requests * case.output_tokens))
        front_cpu_s = took.cpu_s["router"] + took.cpu_s["client"]
        front_s.append(front_cpu_s - case.num_requests * request_cpu_s)
        decode_s.append(took.cpu_s["decode-worker"] - took.steps_s("decode-worker"))
    front, decode = _fit(work, front_s), _fit(work, decode_s)
    overhead = replace(
        spec.overhead,
        request_cpu_s=request_cpu_s,
        prefill_request_cpu_s=max(prefill_cpu_s, 0.0) / single.num_requests,
        front_step_cpu_s=front[0],
        front_token_cpu_s=front[1],
        decode_step_cpu_s=decode[0],
        decode_token_cpu_s=decode[1],
    )
    lone = Case(1, 1, 8, concurrency=1)
    took = await service.run(lone)
    spec = replace(spec, overhead=overhead, cost=fit_cost(took.all_steps))
    simulated = predict(spec, lone).requests
    request_s = median(s.ttft for s in took.samples) - median(
        r.arrivals_s[0] - r.sent_s for r in simulated
    )
    gap_s = median(s.itls[0] for s in took.samples) - median(
        r.arrivals_s[1] - r.arrivals_s[0] for r in simulated
    )
    return replace(overhead, request_s=max(request_s, 0.0), wire_s=max(gap_s, 0.0))


def _fit(work: list[tuple[int, int]], seconds: list[float]) -> tuple[float, float]:
    """Seconds a step and a token, neither negative."""
    per_step, per_token = np.linalg.solve(np.array(work, dtype=float), np.array(seconds))
    tokens = np.array([count for _, count in work])
    steps = np.array([count for count, _ in work])
    if per_step < 0:
        return 0.0, max(sum(seconds) / int(tokens.sum()), 0.0)
    if per_token < 0:
        return max(sum(seconds) / int(steps.sum()), 0.0), 0.0
    return float(per_step), float(per_token)


async def validate(
    model: Path, report: Report, num_rounds: int
) -> tuple[ServiceSpec, list[Compared]]:
    """Calibrate, then compare; takes some minutes and four for each round."""
    spec = base_spec(model)
    compared: list[Compared] = []
    for size in (1, 2):
        with tempfile.TemporaryDirectory(prefix="octavo-sim-") as work:
            report(f"starting {size}P{size}D")
            async with real_service(model, Path(work), Case(size, size, 1)) as service:
                await service.run(Case(size, size, 8, output_tokens=16, concurrency=4))  # warm up
                if size == 1:
                    report("calibrating on 1P1D")
                    spec = replace(spec, overhead=await calibrate(spec, service))
                for case in _cases(size):
                    report(case.name)
                    if case.per_second is not None:
                        case = replace(case, per_second=_rate(compared, size))
                    compared.append(await _compare(spec, service, case, num_rounds))
    return spec, compared


def _cases(size: int) -> list[Case]:
    closed = [Case(size, size, 2 * level, concurrency=level) for level in LEVELS]
    return [*closed, Case(size, size, 32, per_second=1.0)]


def _rate(compared: list[Compared], size: int) -> float:
    at_16 = next(c for c in compared if c.case.concurrency == 16 and c.case.prefills == size)
    return POISSON_LOAD * at_16.measured["output_tokens_per_s"] / at_16.case.output_tokens


async def _compare(
    spec: ServiceSpec, service: RealService, case: Case, num_rounds: int
) -> Compared:
    """Measure, then simulate with the cost of that run's steps; medians of some rounds.

    That of another run would not do: where others use the machine, too, the same load takes up to a
    fifth longer a minute later.
    """
    simulated, measured, others = [], [], []
    for _ in range(num_rounds):
        took = await service.run(case)
        outcome = predict(replace(spec, cost=fit_cost(took.all_steps)), case, service.poisson_seed)
        simulated.append(latencies(outcome.requests))
        measured.append(summarize(took.samples))
        others.append(took.others_share)
    return Compared(case, _medians(simulated), _medians(measured), max(others))


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {figure: median(each[figure] for each in rounds) for figure in rounds[0]}


def run_validation(
    model: Path, report: Report, num_rounds: int
) -> tuple[ServiceSpec, list[Compared]]:
    return asyncio.run(validate(model, report, num_rounds))
