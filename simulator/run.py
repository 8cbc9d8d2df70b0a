"""Builds a service of some size, sends it a workload, and returns what happened."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from octavo.engine.limits import Limits
from octavo.router.worker import Role
from simulator.clock import Clock, on_clock
from simulator.core import Core
from simulator.cost import StepCost
from simulator.engine import SimulatedEngine
from simulator.fleet import Fleet, Node
from simulator.index import IndexWork, SimulatedIndex
from simulator.overhead import Overhead
from simulator.service import Service
from simulator.workload import Request, in_order

INDEX_DELAY_S = 0.03  # AnnouncerTiming.flush_s
INDEX_BATCH_BLOCKS = 128  # announcer.MAX_BATCH_BLOCKS
FIRST_TOKEN_STRIDE = 2**24  # engines make different tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """Size and speed of a simulated service."""

    num_prefills: int
    num_decodes: int
    cost: StepCost
    block_size: int
    block_bytes: float
    num_blocks: int  # of each worker
    max_num_seqs: int = 256
    prefill_step_tokens: int = 8192
    decode_step_tokens: int = 8192
    max_model_len: int = 131_072
    local_prefill_max_tokens: int = 64
    overhead: Overhead = field(default_factory=Overhead)
    num_shared_cores: int | None = None  # all workers, router and client on so few; None: own ones
    use_index: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Taken at each completion, so that a part of a run can be looked at alone."""

    at_s: float
    step_s: dict[Role, float]  # of all workers of a role so far


@dataclass(slots=True)
class Outcome:
    """What a run did; `requests` hold their own stories."""

    requests: list[Request]
    nodes: list[Node]
    index: IndexWork
    num_placements: int
    placement_s: float  # real CPU time, the one figure that differs from run to run
    num_token_messages: int
    num_events: int
    moments: list[Moment]

    @property
    def end_s(self) -> float:
        return self.moments[-1].at_s

    def busy_share(self, role: Role, since: int | None = None, until: int = -1) -> float:
        """Mean share of time in which a worker of this role computed, between two completions."""
        count = sum(node.view.facts.role is role for node in self.nodes)
        first = Moment(0.0, dict.fromkeys(Role, 0.0)) if since is None else self.moments[since]
        last = self.moments[until]
        return (last.step_s[role] - first.step_s[role]) / (count * (last.at_s - first.at_s))


def simulate(
    spec: ServiceSpec,
    requests: list[Request],
    *,
    concurrency: int | None = None,
    ramp_s: float = 0.0,
) -> Outcome:
    """Run every request to its end.

    Args:
        concurrency: so many are open at a time; None: each is sent at its `arrives_s`.
        ramp_s: over which that many callers begin, one after the other.
    """
    clock = Clock()
    with on_clock(clock):
        index = SimulatedIndex(clock, INDEX_DELAY_S, INDEX_BATCH_BLOCKS)
        nodes, shared = _nodes(spec, clock, index)
        fleet = Fleet(nodes, index if spec.use_index else None, spec.seed)
        service = Service(clock, fleet, spec.overhead, spec.block_bytes, shared, spec.seed)
        queue = in_order(requests)
        moments: list[Moment] = []

        def on_done() -> None:
            moments.append(Moment(clock.now, _step_s(nodes)))

        if concurrency is None:
            for request in queue:
                clock.after(request.arrives_s, partial(service.send, request, on_done))
        else:
            for caller in range(concurrency):
                begin = partial(_next, service, queue, on_done)
                clock.after(ramp_s * caller / concurrency, begin)
        clock.run()
    return Outcome(
        requests=requests,
        nodes=nodes,
        index=index.work,
        num_placements=service.num_placements,
        placement_s=service.placement_s,
        num_token_messages=service.num_token_messages,
        num_events=clock.num_events,
        moments=moments,
    )


def _next(service: Service, queue: Iterator[Request], on_done: Callable[[], None]) -> None:
    """A caller sends its next request when the last one ended."""
    request = next(queue, None)
    if request is None:
        return

    def done() -> None:
        on_done()
        _next(service, queue, on_done)

    service.send(request, done)


def _step_s(nodes: list[Node]) -> dict[Role, float]:
    sums = dict.fromkeys(Role, 0.0)
    for node in nodes:
        sums[node.view.facts.role] += node.engine.step_s
    return sums


def _nodes(spec: ServiceSpec, clock: Clock, index: SimulatedIndex) -> tuple[list[Node], list[Core]]:
    """Workers in `octavo up`'s order, on cores in turn as it pins them; then the shared cores."""
    shared = [Core(clock) for _ in range(spec.num_shared_cores or 0)]
    roles = [(Role.PREFILL, n) for n in range(spec.num_prefills)]
    roles += [(Role.DECODE, n) for n in range(spec.num_decodes)]
    nodes = []
    for position, (role, number) in enumerate(roles):
        core = shared[position % len(shared)] if shared else Core(clock)
        is_prefill = role is Role.PREFILL
        step_tokens = spec.prefill_step_tokens if is_prefill else spec.decode_step_tokens
        max_len = min(spec.max_model_len, spec.num_blocks * spec.block_size)
        limits = Limits(spec.block_size, spec.max_num_seqs, step_tokens, max_len)
        engine = SimulatedEngine(
            core, spec.cost, limits, spec.num_blocks, 1000 + position * FIRST_TOKEN_STRIDE
        )
        local = 0 if is_prefill else spec.local_prefill_max_tokens
        nodes.append(Node(clock, f"{role.value}-{number}", role, engine, local, index))
    return nodes, shared or [Core(clock)]
