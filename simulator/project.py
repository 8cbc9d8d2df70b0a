"""Projects to many workers: what is served, how long it takes, and which part is full first.

ratio     P:D at a fixed number of workers     where both phases are equally busy
hit rate  prompts that share more              what prefill is spared
size      more workers at the best ratio       router, Redis and network beside them
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from octavo.router.worker import Role
from simulator.assumptions import Assumptions
from simulator.figures import hit_rate, latencies
from simulator.run import Outcome, simulate
from simulator.workload import Request, conversations, poisson

MOONCAKE_CEILING = 0.366
PREFILL_SHARES = (0.625, 0.75, 0.8125, 0.875)
HIT_CEILINGS = (0.0, 0.2, MOONCAKE_CEILING, 0.6)
LOADS = (0.5, 0.7, 0.9)  # of the best ratio's rate
ROUNDS = 2.0  # requests over callers
STEADY = (0.3, 0.8)  # of the completions, between which figures are taken


@dataclass(frozen=True, slots=True)
class Point:
    """One projected run."""

    sweep: str
    model: str
    num_prefills: int
    num_decodes: int
    hit_ceiling: float
    seed: int = 0
    per_second: float = 0.0  # Poisson; 0: a closed loop that keeps the service full

    @property
    def num_workers(self) -> int:
        return self.num_prefills + self.num_decodes


def project(
    assumptions: Assumptions,
    num_workers: int,
    sizes: list[int],
    seed: int,
    on_done: Callable[[], None],
) -> list[dict[str, Any]]:
    """All sweeps of all models, as many processes as cores."""
    rows: list[dict[str, Any]] = []
    # Spawned: a fork would copy the locks of grpc's threads and of the progress bar's.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        first = [
            Point("ratio", model, *_split(num_workers, share), MOONCAKE_CEILING, seed)
            for model in assumptions.models
            for share in PREFILL_SHARES
        ]
        rows += _run_all(pool, assumptions, first, on_done)
        second: list[Point] = []
        for model in assumptions.models:
            best = _best(rows, model)
            share = best["num_prefills"] / best["num_workers"]
            for hit_ceiling in HIT_CEILINGS:
                split = _split(num_workers, share)
                second.append(Point("hit rate", model, *split, hit_ceiling, seed))
            for load in LOADS:
                rate = load * best["requests_per_s"]
                split = _split(num_workers, share)
                second.append(Point("load", model, *split, MOONCAKE_CEILING, seed, rate))
            for size in sizes:
                split = _split(size, share)
                second.append(Point("size", model, *split, MOONCAKE_CEILING, seed))
        rows += _run_all(pool, assumptions, second, on_done)
    return rows


def count_points(assumptions: Assumptions, sizes: list[int]) -> int:
    return len(assumptions.models) * (
        len(PREFILL_SHARES) + len(HIT_CEILINGS) + len(LOADS) + len(sizes)
    )


def run_point(assumptions: Assumptions, point: Point) -> dict[str, Any]:
    """Run it; figures of its steady part."""
    spec = assumptions.spec(point.model, point.num_prefills, point.num_decodes, point.seed)
    callers = assumptions.workload["callers_per_decode_worker"] * point.num_decodes
    count = int(ROUNDS * callers)
    requests = conversations(count, point.hit_ceiling, spec.block_size, point.seed)
    if point.per_second:
        requests = poisson(requests, point.per_second, point.seed)
    outcome = simulate(
        spec,
        requests,
        concurrency=None if point.per_second else callers,
        ramp_s=assumptions.workload["ramp_s"],
    )
    since, until = (int(share * (count - 1)) for share in STEADY)
    begin, end = outcome.moments[since].at_s, outcome.moments[until].at_s
    per_second = (until - since) / (end - begin)
    figures = latencies(_steady(requests))
    figures |= {
        "requests_per_s": per_second,
        "output_tokens_per_s": per_second * float(np.mean([r.max_tokens for r in requests])),
        "hit_percent": 100 * hit_rate(_steady(requests)),
        "prefill_busy_percent": 100 * outcome.busy_share(Role.PREFILL, since, until),
        "decode_busy_percent": 100 * outcome.busy_share(Role.DECODE, since, until),
        "callers": float(callers),
    }
    figures |= loads(assumptions, point, outcome, per_second)
    return asdict(point) | {"num_workers": point.num_workers} | figures


def loads(
    assumptions: Assumptions, point: Point, outcome: Outcome, per_second: float
) -> dict[str, float]:
    """What router, Redis and links do at this rate, and their share of what one of each can do."""
    count = len(outcome.requests)
    router, redis, index = assumptions.router, assumptions.redis, outcome.index
    placement_us = 1e6 * outcome.placement_s / outcome.num_placements
    messages = per_second * outcome.num_token_messages / count
    router_us = messages * router["token_message_us"]
    router_us += per_second * (router["request_us"] + placement_us)
    calls = (index.lookups + index.writes) / count
    keys = (index.keys_read + index.keys_written) / count
    redis_us = calls * redis["call_us"] + keys * redis["key_us"]
    redis_us += index.fields_read / count * redis["field_us"]
    moved = per_second * sum(request.moved_bytes for request in outcome.requests) / count
    link = assumptions.network["link_bytes_per_s"] * assumptions.network["link_efficiency"]
    busiest = moved / min(point.num_prefills, point.num_decodes)
    return {
        "placement_us": placement_us,
        "token_messages_per_s": messages,
        "router_percent": router_us / 1e4,
        "redis_calls_per_s": per_second * calls,
        "redis_keys_per_s": per_second * keys,
        "redis_fields_per_s": per_second * index.fields_read / count,
        "redis_percent": per_second * redis_us / 1e4,
        "network_gb_per_s": moved / 1e9,
        "link_percent": 100 * busiest / link,
    }


def saturation(row: dict[str, Any]) -> dict[str, float]:
    """Workers at which one of each shared part would be full; links grow with the workers."""
    size = row["num_workers"]
    return {
        "one router process": 100 * size / row["router_percent"],
        "one Redis": 100 * size / row["redis_percent"],
    }


def _steady(requests: list[Request]) -> list[Request]:
    """Those sent in the middle of the run."""
    ordered = sorted(requests, key=lambda request: request.sent_s)
    low, high = (int(share * len(ordered)) for share in STEADY)
    return ordered[low:high]


def _split(num_workers: int, prefill_share: float) -> tuple[int, int]:
    num_prefills = min(max(round(num_workers * prefill_share), 1), num_workers - 1)
    return num_prefills, num_workers - num_prefills


def _best(rows: list[dict[str, Any]], model: str) -> dict[str, Any]:
    mine = [row for row in rows if row["model"] == model and row["sweep"] == "ratio"]
    return max(mine, key=lambda row: float(row["requests_per_s"]))


def _run_all(
    pool: ProcessPoolExecutor,
    assumptions: Assumptions,
    points: list[Point],
    on_done: Callable[[], None],
) -> list[dict[str, Any]]:
    order = {pool.submit(run_point, assumptions, point): i for i, point in enumerate(points)}
    rows: list[dict[str, Any]] = [{} for _ in points]
    for future in as_completed(order):
        rows[order[future]] = future.result()
        on_done()
    return rows
