"""One connected worker: what it said it is, how loaded it is, and the legs that run on it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import grpc

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.internal.v1alpha1.worker_pb2 import (
    DecodeManyRequest,
    DecodeRequest,
    DecodeResponse,
    PrefillManyRequest,
    PrefillRequest,
    PrefillResponse,
)
from octavo.router.adapter import AdapterFacts
from octavo.router.leg_call import LegCall, Listener, OwnCall
from octavo.router.many_calls import ManyCalls

# A load sample speaks of what was sent to the worker this long before it, or earlier.
REPORT_DELAY_S = 0.1


class Role(Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What `GetWorker` says and what does not change until the worker restarts."""

    worker_id: str
    address: str  # where others reach it, as it says
    epoch: int
    role: Role
    layout: bytes  # serialized KvLayout; equal bytes may exchange blocks
    model_fingerprint: str
    block_size: int
    max_context_tokens: int
    vocab_size: int
    local_prefill_max_tokens: int
    serves_many_calls: bool = False  # in one stream; an older worker does not

    @classmethod
    def from_proto(cls, message: worker_pb2.GetWorkerResponse) -> "WorkerFacts":
        is_prefill = message.role == worker_pb2.WORKER_ROLE_PREFILL
        return cls(
            worker_id=message.worker.worker_id,
            address=message.worker.address,
            epoch=message.worker.epoch,
            role=Role.PREFILL if is_prefill else Role.DECODE,
            layout=message.layout.SerializeToString(deterministic=True),
            model_fingerprint=message.layout.model_fingerprint,
            block_size=message.layout.block_size,
            max_context_tokens=message.max_context_tokens,
            vocab_size=message.vocab_size,
            local_prefill_max_tokens=message.local_prefill_max_tokens,
            serves_many_calls=(
                message.serves_prefill_many if is_prefill else message.serves_decode_many
            ),
        )


@dataclass(slots=True)
class LegSums:
    """Sums over some legs, kept up as legs come and go: every request asks every worker."""

    legs: int = 0
    prefill_tokens: int = 0
    blocks: int = 0

    def add(self, leg: "Leg", sign: int = 1) -> None:
        self.legs += sign
        self.prefill_tokens += sign * leg.prefill_tokens
        self.blocks += sign * leg.blocks


@dataclass(slots=True, eq=False)
class Leg:
    """One stream on a worker, and what it adds to the load until a sample speaks of it."""

    worker: "Worker"
    prefill_tokens: int
    blocks: int
    sent_at: float
    on_lost: Callable[[str], None] | None = None  # told why the worker cannot go on


class Worker:
    """A worker for as long as one connection to one incarnation of it lasts."""

    def __init__(
        self, facts: WorkerFacts, channel: grpc.aio.Channel, load: worker_pb2.WatchLoadResponse
    ) -> None:
        self.facts = facts
        self.ref = worker_pb2.WorkerRef(
            worker_id=facts.worker_id, address=facts.address, epoch=facts.epoch
        )
        self.channel = channel
        self._prefill_stub = worker_pb2_grpc.PrefillServiceStub(channel)
        self._decode_stub = worker_pb2_grpc.DecodeServiceStub(channel)
        self._prefills = ManyCalls[PrefillRequest, PrefillResponse](
            self._prefill_stub.PrefillMany, PrefillManyRequest
        )
        self._decodes = ManyCalls[DecodeRequest, DecodeResponse](
            self._decode_stub.DecodeMany, DecodeManyRequest
        )
        self.load = load
        self.adapters = _adapters_of(load)
        self.is_stuck = False
        self.has_refused = False  # it drains, and no load sample may have said so yet
        self._last_step_at = self._last_sample_at = time.monotonic()
        self._legs: set[Leg] = set()
        self._unreported: set[Leg] = set()  # sent here, and no load sample has counted them yet
        self._new = LegSums()  # of the unreported
        self._gone = LegSums()  # ended since the last sample, which may have counted them
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def name(self) -> str:
        return f"{self.facts.role.value} worker {self.facts.worker_id} at {self.facts.address}"

    @property
    def takes_work(self) -> bool:
        return not (self.is_stuck or self.has_refused or self.load.is_draining)

    def holds(self, adapter: AdapterFacts | None) -> bool:
        """Whether requests for it can run here; None: for the model as it is."""
        return adapter is None or adapter in self.adapters

    @property
    def num_sequences(self) -> int:
        """Running or waiting, as far as is known now: samples are up to an interval old."""
        return self._num_counted + self._new.legs

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait to be computed, as far as is known now."""
        load, gone = self.load, self._gone
        waiting = load.waiting_prefill_tokens - gone.prefill_tokens if self._num_counted else 0
        return max(waiting, 0) + self._new.prefill_tokens

    @property
    def active_blocks(self) -> int:
        """Held by sequences or about to be, as far as is known now."""
        held = self.load.blocks.held - self._gone.blocks if self._num_counted else 0
        return max(held, 0) + self._new.blocks

    @property
    def _num_counted(self) -> int:
        """Sequences of the last sample that still run."""
        counted = self.load.running_sequences + self.load.waiting_sequences
        return max(counted - self._gone.legs, 0)

    def prefill(
        self, request: PrefillRequest, timeout_s: float, listener: Listener[PrefillResponse]
    ) -> LegCall[PrefillRequest]:
        """Start a Prefill call, which may last so long."""
        if self.facts.serves_many_calls:
            return self._prefills.call(request, timeout_s, listener)
        return OwnCall(self._prefill_stub.Prefill(request, timeout=timeout_s), listener)

    def decode(
        self, request: DecodeRequest, timeout_s: float, listener: Listener[DecodeResponse]
    ) -> LegCall[DecodeRequest]:
        """Start a Decode call, which may last so long."""
        if self.facts.serves_many_calls:
            return self._decodes.call(request, timeout_s, listener)
        call = OwnCall[DecodeRequest](self._decode_stub.Decode(timeout=timeout_s), listener)
        call.send(request)
        return call

    async def describe(self, timeout_s: float) -> worker_pb2.GetWorkerResponse:
        """What it says of itself now, its counters among it; raise AioRpcError if it does not."""
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        reply: worker_pb2.GetWorkerResponse = await stub.GetWorker(
            worker_pb2.GetWorkerRequest(), timeout=timeout_s
        )
        return reply

    def observe(self, load: worker_pb2.WatchLoadResponse) -> None:
        """Take a load sample. A step, or no work, proves that a stuck worker recovered."""
        now = self._last_sample_at = time.monotonic()
        has_stepped = load.steps != self.load.steps
        self.load = load
        self.adapters = _adapters_of(load)
        self._gone = LegSums()
        if has_stepped or not self._has_work:
            self._last_step_at = now
            self.is_stuck = False
        for leg in [leg for leg in self._unreported if leg.sent_at < now - REPORT_DELAY_S]:
            self._report(leg)

    def stuck_for_s(self) -> float:
        """How long there has been work and no step; 0 without work. Ask every now and then."""
        now = time.monotonic()
        if not self._has_work:
            self._last_step_at = now
        return now - self._last_step_at

    def silent_for_s(self) -> float:
        """How long no load sample has come. Live workers send them also while nothing changes."""
        return time.monotonic() - self._last_sample_at

    def forgive(self, paused_s: float) -> None:
        """This process stood still for so long: it could not have heard of a step."""
        self._last_step_at += paused_s
        self._last_sample_at += paused_s

    def end_legs(self, reason: str) -> None:
        """End every leg that runs here now; each says why."""
        for leg in list(self._legs):
            if leg.on_lost is not None:
                leg.on_lost(reason)

    @contextmanager
    def leg(self, *, prefill_tokens: int = 0, blocks: int = 0) -> Iterator[Leg]:
        """Count one leg from now on; the connection stays open until the last one ended."""
        leg = Leg(self, prefill_tokens, blocks, time.monotonic())
        self._legs.add(leg)
        self._unreported.add(leg)
        self._new.add(leg)
        self._idle.clear()
        try:
            yield leg
        finally:
            self._legs.discard(leg)
            self._report(leg)
            if leg.sent_at < self._last_sample_at:
                self._gone.add(leg)
            if not self._legs:
                self._idle.set()

    def _report(self, leg: Leg) -> None:
        """Count a leg by load samples from now on, or no more."""
        if leg in self._unreported:
            self._unreported.remove(leg)
            self._new.add(leg, -1)

    async def until_idle(self) -> None:
        """Wait until no leg runs here."""
        await self._idle.wait()

    @property
    def _has_work(self) -> bool:
        # A live worker steps, if only to show that it lives, as long as it has any sequence.
        return self.load.running_sequences + self.load.waiting_sequences > 0


def _adapters_of(load: worker_pb2.WatchLoadResponse) -> frozenset[AdapterFacts]:
    return frozenset(map(AdapterFacts.of, load.adapters))
