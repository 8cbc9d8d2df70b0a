"""The simulated service: nothing is lost, a seed decides everything, and times add up by hand."""

from dataclasses import dataclass, replace

import pytest

from octavo.engine.step_plan import StepPlan
from octavo.engine.step_size import StepSize
from octavo.router.worker import Role
from simulator.overhead import Overhead
from simulator.run import Outcome, ServiceSpec, simulate
from simulator.workload import Request, conversations, equal_requests, poisson


@dataclass(frozen=True, slots=True)
class LinearCost:
    """10 ms a step with decode rows, 1 ms a prompt token."""

    def seconds(self, plan: StepPlan) -> float:
        size = StepSize.of(plan)
        return (0.010 if size.rows else 0.0) + 0.001 * size.tokens


TINY = ServiceSpec(
    num_prefills=1,
    num_decodes=1,
    cost=LinearCost(),
    block_size=16,
    block_bytes=1000.0,
    num_blocks=64,
    prefill_step_tokens=32,
    decode_step_tokens=32,
    local_prefill_max_tokens=0,
)


def mixed_requests(seed: int) -> list[Request]:
    """60 short conversations: prompts 20 to 139 tokens, outputs 1 to 40."""
    requests = conversations(60, 0.3, 16, seed)
    for request in requests:
        request.num_prompt = 20 + request.num_prompt % 120
        request.num_shared = min(request.num_shared, request.num_prompt - 10)
        request.max_tokens = 1 + request.max_tokens % 40
    return requests


def check_conserved(outcome: Outcome) -> None:
    for request in outcome.requests:
        assert len(request.arrivals_s) == request.max_tokens
        assert request.arrivals_s == sorted(request.arrivals_s)
        assert request.arrivals_s[0] > request.sent_s
    for node in outcome.nodes:
        scheduler = node.engine.scheduler
        assert not scheduler.has_work
        assert scheduler.pool.num_held == 0
        assert not node.view._legs


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3)])
@pytest.mark.parametrize("num_blocks", [16, 256])
def test_every_request_finishes_once_and_gives_its_blocks_back(
    sizes: tuple[int, int], num_blocks: int
) -> None:
    prefills, decodes = sizes
    spec = replace(TINY, num_prefills=prefills, num_decodes=decodes, num_blocks=num_blocks)
    outcome = simulate(spec, mixed_requests(1), concurrency=24)
    check_conserved(outcome)
    preemptions = sum(node.engine.scheduler.totals.preemptions for node in outcome.nodes)
    assert (preemptions > 0) == (num_blocks == 16)


def test_shared_cores_and_overhead_lose_nothing() -> None:
    overhead = Overhead(0.001, 0.002, 1e-4, 1e-4, 1e-4, 1e-4, 0.001, 1e-8, 1e-9, 0.001)
    spec = replace(TINY, num_shared_cores=2, overhead=overhead, local_prefill_max_tokens=64)
    check_conserved(simulate(spec, poisson(mixed_requests(2), 20.0, 2)))


def test_a_seed_decides_every_time() -> None:
    def stories(seed: int) -> list[list[float]]:
        spec = replace(TINY, num_prefills=2, num_decodes=2, seed=seed)
        outcome = simulate(spec, poisson(mixed_requests(seed), 30.0, seed))
        return [request.arrivals_s for request in outcome.requests]

    assert stories(3) == stories(3)
    assert stories(3) != stories(4)


def test_one_request_takes_what_its_steps_take_by_hand() -> None:
    overhead = Overhead(request_s=0.005, wire_s=0.003)
    [request] = simulate(
        replace(TINY, overhead=overhead), equal_requests(1, 40, 4), concurrency=1
    ).requests
    # 5 ms to the workers; chunks of 32 and 8 tokens; 3 ms for the last block; steps of 10 ms.
    assert request.arrivals_s == pytest.approx([0.045, 0.058, 0.068, 0.078])
    assert request.moved_bytes == 3 * 1000


def test_two_requests_share_a_decode_step_by_hand() -> None:
    first, second = simulate(TINY, equal_requests(2, 32, 3), concurrency=2).requests
    # The prefill worker takes one after the other: 32 ms each.
    assert first.arrivals_s == pytest.approx([0.032, 0.042, 0.052])
    # The first one's last step began at 42 ms and ended at 52 ms; the second joined at 64 ms.
    assert second.arrivals_s == pytest.approx([0.064, 0.074, 0.084])


def test_workers_on_one_core_slow_each_other_by_hand() -> None:
    spec = replace(TINY, num_shared_cores=1)
    first, second = simulate(spec, equal_requests(2, 32, 2), concurrency=2).requests
    # From 32 ms on the first's 10 ms step and the second's 32 ms prompt share the core.
    assert first.arrivals_s == pytest.approx([0.032, 0.052])
    assert second.arrivals_s == pytest.approx([0.074, 0.084])


def test_an_equal_prompt_is_decoded_without_a_prefill_worker() -> None:
    requests = equal_requests(2, 40, 4)
    for request in requests:
        request.num_shared = 40
    requests[1].arrives_s = 1.0
    spec = replace(TINY, local_prefill_max_tokens=16)
    outcome = simulate(spec, requests)
    assert [request.cached_tokens for request in requests] == [0, 32]
    assert [request.moved_bytes for request in requests] == [3000, 0]
    # 8 tokens are left to compute, in the decode worker.
    assert requests[1].arrivals_s[0] == pytest.approx(1.008)
    assert outcome.busy_share(Role.PREFILL) * outcome.end_s == pytest.approx(0.040)
