"""The router's view of simulated workers: its own `Worker` and `RouteFinder`, fed on virtual time.

engine --load sample, at most every interval--> Worker (legs, counts) --> RouteFinder --> place
"""

import random
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, cast

import grpc

from octavo.block_key import BlockKey
from octavo.engine.load import Load
from octavo.internal.v1alpha1 import worker_pb2
from octavo.registry.index import PrefixIndex
from octavo.router.config import RouterConfig
from octavo.router.route import Route, RouteFinder
from octavo.router.worker import Role, Worker, WorkerFacts
from octavo.router.workers import Workers
from simulator.clock import Clock
from simulator.engine import SimulatedEngine
from simulator.index import SimulatedIndex

ROUTER = RouterConfig(model="simulated")
Result = TypeVar("Result")


class _NoChannel:
    """Stubs are made on it and never called."""

    def unary_stream(self, *_: object, **__: object) -> None: ...

    def stream_stream(self, *_: object, **__: object) -> None: ...


class Node:
    """One worker: its engine, and what the router knows of it."""

    def __init__(
        self,
        clock: Clock,
        worker_id: str,
        role: Role,
        engine: SimulatedEngine,
        local_prefill_max_tokens: int,
        index: SimulatedIndex | None,
    ) -> None:
        limits = engine.scheduler.limits
        facts = WorkerFacts(
            worker_id=worker_id,
            address="",
            epoch=1,
            role=role,
            layout=b"one",
            model_fingerprint="",
            block_size=limits.block_size,
            max_context_tokens=limits.max_model_len,
            vocab_size=2**32,
            local_prefill_max_tokens=local_prefill_max_tokens,
        )
        self.engine = engine
        self.view = Worker(facts, cast(grpc.aio.Channel, _NoChannel()), _message(_load(engine)))
        self.num_load_samples = 0
        self._clock = clock
        self._index = index
        self._told = _load(engine)
        self._next_sample_at = 0.0
        self._is_sampling = False
        engine.publish = self._publish

    def _publish(self, load: Load, stored: list[BlockKey], removed: list[BlockKey]) -> None:
        if self._index is not None:
            self._index.publish(self.view.facts.worker_id, stored, removed)
        if not self._is_sampling and load != self._told:
            self._is_sampling = True
            self._clock.after(max(self._next_sample_at - self._clock.now, 0.0), self._sample)

    def _sample(self) -> None:
        self._is_sampling = False
        self._told = _load(self.engine)
        self._next_sample_at = self._clock.now + ROUTER.load_interval_s
        self.num_load_samples += 1
        self.view.observe(_message(self._told))


class Fleet:
    """Workers by role, and the router's choice among them."""

    def __init__(self, nodes: list[Node], index: SimulatedIndex | None, seed: int) -> None:
        self.nodes = {node.view.facts.worker_id: node for node in nodes}
        self.prefills = [n.view for n in nodes if n.view.facts.role is Role.PREFILL]
        self.decodes = [n.view for n in nodes if n.view.facts.role is Role.DECODE]
        self.finder = RouteFinder(
            cast(Workers, self),  # it asks for prefills, decodes and named
            cast(PrefixIndex, index) if index is not None else None,
            sequence_weight=ROUTER.decode_sequence_weight,
            local_prefill_max_tokens=ROUTER.local_prefill_max_tokens,
        )
        self.finder._draw = random.Random(seed)

    def named(self, worker_id: str) -> Worker:
        return self.nodes[worker_id].view

    def with_role(self, role: Role) -> list[Node]:
        return [node for node in self.nodes.values() if node.view.facts.role is role]


def enter(context: AbstractAsyncContextManager[Route]) -> Route:
    """Begin a route now: with this index nothing in it waits."""
    return _run_now(cast(Coroutine[object, None, Route], context.__aenter__()))


def leave(context: AbstractAsyncContextManager[Route]) -> None:
    _run_now(cast(Coroutine[object, None, bool | None], context.__aexit__(None, None, None)))


def _run_now(coroutine: Coroutine[object, None, Result]) -> Result:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(Result, end.value)
    raise RuntimeError("the route waits for something that virtual time does not know")


def _load(engine: SimulatedEngine) -> Load:
    return engine.scheduler.load()


def _message(load: Load) -> worker_pb2.WatchLoadResponse:
    counts = load.blocks
    return worker_pb2.WatchLoadResponse(
        running_sequences=load.running_sequences,
        waiting_sequences=load.waiting_sequences,
        waiting_prefill_tokens=load.waiting_prefill_tokens,
        blocks=worker_pb2.GetWorkerResponse.Blocks(
            total=counts.total, free=counts.free, cached=counts.cached, held=counts.held
        ),
        steps=load.steps,
    )
