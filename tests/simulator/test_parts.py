"""The simulator's own parts: shared cores, the index, costs and the synthetic trace."""

import asyncio

import numpy as np
import pytest

from octavo.engine.sequence import Sequence
from octavo.engine.step_plan import Chunk, StepPlan
from octavo.sampling_params import SamplingParams
from simulator.assumptions import Assumptions
from simulator.clock import Clock
from simulator.core import Core
from simulator.cost import MeasuredCost
from simulator.index import SimulatedIndex
from simulator.project import Point, run_point
from simulator.workload import ceiling, conversations


def test_jobs_share_a_core_equally() -> None:
    clock, ends = Clock(), dict[str, float]()
    core = Core(clock)
    core.run(2.0, lambda: ends.update(long=clock.now))
    core.run(1.0, lambda: ends.update(short=clock.now))
    clock.after(2.5, lambda: core.run(1.0, lambda: ends.update(late=clock.now)))
    clock.run()
    # Two until 2.0, one until 2.5, two until 3.5, one until 4.0.
    assert ends == pytest.approx({"short": 2.0, "long": 3.5, "late": 4.0})
    assert core.busy_s == pytest.approx(4.0)


def test_index_tells_leading_blocks_once_they_are_published() -> None:
    clock = Clock()
    index = SimulatedIndex(clock, delay_s=0.03, batch_blocks=2)
    workers = [("a", 1), ("b", 1)]

    def look_up() -> dict[str, int]:
        return asyncio.run(index.lookup([b"1", b"2", b"3"], workers))

    index.publish("a", [b"1", b"2", b"3"], [])
    index.publish("b", [b"1", b"3"], [])
    index.publish("a", [], [b"3"])
    assert look_up() == {}
    clock.run()
    assert look_up() == {"a": 2, "b": 1}
    assert (index.work.keys_read, index.work.fields_read) == (1 + 3, 2 + 2 + 2 + 1)
    assert (index.work.writes, index.work.keys_written) == (2 + 1, 3 + 2)


def test_measured_cost_interpolates_and_adds_attention() -> None:
    cost = MeasuredCost(((1, 0.010), (3, 0.014)), ((10, 0.020), (20, 0.030)), 1e-6)
    decode = _sequence(num_tokens=100, num_computed=99)
    chunk = Chunk(_sequence(num_tokens=15, num_computed=0), 15)
    assert cost.seconds(StepPlan([decode, decode])) == pytest.approx(0.012 + 200e-6)
    assert cost.seconds(StepPlan(chunks=[chunk])) == pytest.approx(0.025)
    # Both read the weights once.
    together = 0.010 + 100e-6 + 0.025 - 0.010
    assert cost.seconds(StepPlan([decode], chunks=[chunk])) == pytest.approx(together)


@pytest.mark.parametrize("wanted", [0.0, 0.366, 0.6])
def test_trace_has_the_published_lengths_and_the_wanted_ceiling(wanted: float) -> None:
    requests = conversations(4000, wanted, 64, seed=0)
    lengths = [request.num_prompt for request in requests]
    assert np.percentile(lengths, 50) == pytest.approx(6_909, rel=0.06)
    assert np.percentile(lengths, 90) == pytest.approx(27_367, rel=0.06)
    assert np.mean(lengths) == pytest.approx(12_035, rel=0.06)
    assert np.mean([request.max_tokens for request in requests]) == pytest.approx(343, rel=0.06)
    assert ceiling(requests, 64) == pytest.approx(wanted, abs=0.005)
    with pytest.raises(ValueError, match="hit_ceiling is 0.99"):
        conversations(100, 0.99, 64, seed=0)


def test_requests_of_a_family_begin_alike_and_end_apart() -> None:
    requests = conversations(200, 0.366, 64, seed=0)
    first = requests[0]
    other = next(request for request in requests[1:] if request.family == first.family)
    prompts = first.prompt(0), other.prompt(0)
    num_shared = min(first.num_shared, other.num_shared)
    assert prompts[0][:num_shared] == prompts[1][:num_shared]
    assert prompts[0][num_shared : num_shared + 64] != prompts[1][num_shared : num_shared + 64]
    assert [len(prompt) for prompt in prompts] == [first.num_prompt, other.num_prompt]


def test_a_projection_serves_all_and_names_what_it_loads() -> None:
    assumptions = Assumptions.read()
    assumptions.workload["callers_per_decode_worker"] = 8
    row = run_point(assumptions, Point("ratio", "7B", 3, 1, 0.366))
    assert row["requests_per_s"] > 0
    assert row["router_percent"] > 0 and row["redis_percent"] > 0
    assert max(row["prefill_busy_percent"], row["decode_busy_percent"]) <= 100


def _sequence(num_tokens: int, num_computed: int) -> Sequence:
    sampling = SamplingParams(temperature=0.0)
    seq = Sequence("a", [1] * num_tokens, num_tokens, sampling, b"g" * 32)
    seq.num_computed_tokens = num_computed
    return seq
