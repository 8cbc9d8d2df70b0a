"""The path of a request through simulated workers, as ARCHITECTURE.md draws it.

send -> route -> D reserves -> P computes, chunk by chunk -> copies -> D joins -> tokens -> end
                               first token -------------------------> client
"""

import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.router.placement import Demand
from octavo.router.route import Route
from octavo.router.worker import Role
from octavo.sampling_params import SamplingParams
from simulator.clock import Action, Clock
from simulator.core import Core, least_busy
from simulator.fleet import Fleet, Node, enter, leave
from simulator.overhead import Overhead
from simulator.workload import Request

GROUP = b"g" * 32


@dataclass(slots=True, eq=False)
class _Running:
    """One request between its route and its last token."""

    request: Request
    prompt: list[int]
    sampling: SamplingParams
    done: Action
    context: AbstractAsyncContextManager[Route]
    prefill: Node | None = None
    decode: Node | None = None
    next_block: int = 0  # first one not yet on its way
    copies: int = 0
    first_token: int | None = None

    @property
    def seq_id(self) -> str:
        return str(self.request.index)

    def sequence(self, *, is_pulled: bool = False, is_leased: bool = False) -> Sequence:
        sampling = replace(self.sampling, max_tokens=1) if is_leased else self.sampling
        return Sequence(
            self.seq_id,
            list(self.prompt),
            len(self.prompt),
            sampling,
            GROUP,
            is_pulled=is_pulled,
            is_leased=is_leased,
        )


@dataclass(slots=True)
class Service:
    """Sends requests through a fleet; what is no step runs on `shared_cores`."""

    clock: Clock
    fleet: Fleet
    overhead: Overhead
    block_bytes: float
    shared_cores: list[Core]
    seed: int
    num_placements: int = 0
    placement_s: float = 0.0  # real CPU seconds of the router's own code
    num_token_messages: int = 0
    _running: dict[str, _Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.fleet.nodes.values():
            is_prefill = node.view.facts.role is Role.PREFILL
            take = self._on_prefill if is_prefill else self._on_decode
            node.engine.deliver = partial(take, node)

    def send(self, request: Request, done: Action) -> None:
        """Run `request`; `done` is called when its last token is there."""
        request.sent_s = self.clock.now
        self._beside(
            self.overhead.request_cpu_s,
            lambda: self.clock.after(
                self.overhead.request_s, lambda: self._route(request, done, True)
            ),
        )

    def _beside(self, cpu_s: float, then: Action) -> None:
        """Work beside steps: no thread but an engine's is bound to a core, so where there is room.

        Free of charge where none is told.
        """
        if cpu_s:
            least_busy(self.shared_cores).run(cpu_s, then)
        else:
            then()

    def _route(self, request: Request, done: Action, may_prefill_locally: bool) -> None:
        prompt = request.prompt(self.seed)
        demand = Demand(len(prompt), request.max_tokens, may_prefill_locally)
        context = self.fleet.finder.route(demand, prompt, GROUP)
        began = time.thread_time()
        route = enter(context)
        self.placement_s += time.thread_time() - began
        self.num_placements += 1
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
        run = _Running(request, prompt, sampling, done, context)
        run.prefill = self._node(route.prefill.worker.facts.worker_id if route.prefill else None)
        run.decode = self._node(route.decode.worker.facts.worker_id if route.decode else None)
        self._running[run.seq_id] = run
        if run.decode is None:
            self._prefill(run)
        elif run.prefill is None:
            run.decode.engine.post(partial(self._decode_alone, run, run.decode))
        else:
            seq = run.sequence(is_pulled=True)
            run.decode.engine.post(partial(run.decode.engine.scheduler.add, seq))

    def _node(self, worker_id: str | None) -> Node | None:
        return self.fleet.nodes[worker_id] if worker_id is not None else None

    def _decode_alone(self, run: _Running, node: Node) -> None:
        """The index is a hint: the decode worker looks again, as its servicer does."""
        seq = run.sequence()
        missing = seq.num_tokens - node.engine.scheduler.count_cached_tokens(seq)
        if missing <= node.view.facts.local_prefill_max_tokens:
            node.engine.scheduler.add(seq)
            return
        del self._running[run.seq_id]
        leave(run.context)
        self.clock.after(0.0, lambda: self._route(run.request, run.done, False))

    def _prefill(self, run: _Running) -> None:
        assert run.prefill is not None
        engine = run.prefill.engine
        engine.post(partial(engine.scheduler.add, run.sequence(is_leased=True)))

    def _on_prefill(self, node: Node, outputs: list[SequenceOutput]) -> None:
        first_tokens: list[_Running] = []
        for output in outputs:
            run = self._running[output.seq_id]
            if output.num_cached_tokens is not None:
                run.request.cached_tokens = output.num_cached_tokens
            if output.token_ids:
                run.first_token = output.token_ids[0]
                first_tokens.append(run)
            if run.decode is not None:
                self._hand_over(run, node, output)
            elif output.token_ids:
                node.engine.post(partial(node.engine.scheduler.release, run.seq_id))
        for run in first_tokens:
            told = _Told(run, 1, is_last=run.decode is None)
            self._tell(self.overhead.prefill_request_cpu_s, [told])

    def _hand_over(self, run: _Running, node: Node, output: SequenceOutput) -> None:
        """Move the blocks that are complete now: out of one core, over the wire, into another."""
        block_size = node.view.facts.block_size
        end = output.num_computed_tokens // block_size
        if output.token_ids:
            end = -(-len(run.prompt) // block_size)
        num_blocks = max(end - run.next_block, 0)
        run.next_block += num_blocks
        num_bytes = num_blocks * self.block_bytes
        run.request.moved_bytes += num_bytes
        run.copies += 1
        decode = run.decode
        assert decode is not None
        copy_s = num_bytes * self.overhead.copy_s_per_byte
        wire_s = self.overhead.wire_s + num_bytes * self.overhead.wire_s_per_byte

        def receive() -> None:
            self._beside(copy_s, partial(self._copied, run, node, decode))

        self._beside(copy_s, lambda: self.clock.after(wire_s, receive))

    def _copied(self, run: _Running, prefill: Node, decode: Node) -> None:
        run.copies -= 1
        if run.copies or run.first_token is None:
            return
        scheduler = decode.engine.scheduler

        def join(token: int = run.first_token) -> None:
            scheduler.end_pull(run.seq_id)
            scheduler.join(run.seq_id, token)

        decode.engine.post(join)
        prefill.engine.post(partial(prefill.engine.scheduler.release, run.seq_id))

    def _on_decode(self, node: Node, outputs: list[SequenceOutput]) -> None:
        told: list[_Told] = []
        for output in outputs:
            run = self._running[output.seq_id]
            if output.num_cached_tokens is not None:
                if run.prefill is None:
                    run.request.cached_tokens = output.num_cached_tokens
                else:
                    run.next_block = output.num_computed_tokens // node.view.facts.block_size
                    self._prefill(run)
            if output.token_ids:
                num_tokens = output.first_index + len(output.token_ids)
                told.append(_Told(run, num_tokens, output.finish_reason is not None))
        if told:
            cpu_s = self.overhead.decode_step_cpu_s
            cpu_s += self.overhead.decode_token_cpu_s * len(told)
            self._tell(cpu_s, told)

    def _tell(self, cpu_s: float, told: list["_Told"]) -> None:
        """Tokens of one step: out of the worker, through the router, to the client."""
        self.num_token_messages += len(told)
        front_s = self.overhead.front_step_cpu_s + self.overhead.front_token_cpu_s * len(told)
        self._beside(cpu_s, lambda: self._beside(front_s, lambda: self._take(told)))

    def _take(self, told: list["_Told"]) -> None:
        """Each token counts once, whichever stream brought it: both bring the first."""
        for message in told:
            run = message.run
            num_new = message.num_tokens - len(run.request.arrivals_s)
            run.request.arrivals_s += [self.clock.now] * num_new
            if message.is_last:
                del self._running[run.seq_id]
                leave(run.context)
                run.done()


@dataclass(frozen=True, slots=True)
class _Told:
    """A message says: the output has num_tokens now."""

    run: _Running
    num_tokens: int
    is_last: bool
