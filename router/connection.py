"""Keeps one address connected and says which worker answers there.

    connect --> GetWorker --> WatchLoad: sample, sample, ... --> broken --> wait --> connect
                    |             each one: load, stuck or not        |
                    +--> joined ------------------------------------->+--> left

A connection outlives its address's disappearance from the registry: only its own end says that the
worker is gone, so that a lying or restarted Redis costs nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.router.worker import Worker, WorkerFacts
from octavo.rpc.channels import open_channel
from octavo.rpc.tls import TlsFiles

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
# So long, and the interval between samples, a worker may say nothing when nothing changes.
MAX_SILENCE_S = 1.0


class WorkerRefused(Exception):
    """The process at this address cannot be used; the message says why."""


class Roster(Protocol):
    """Whoever keeps the list of workers; `join` may raise WorkerRefused."""

    def join(self, worker: Worker) -> None: ...

    def leave(self, worker: Worker) -> None: ...

    def tell_change(self) -> None: ...


class Connection:
    """The one task that talks to one address."""

    def __init__(
        self,
        address: str,
        roster: Roster,
        *,
        is_wanted: Callable[[str], bool],
        load_interval_s: float,
        stuck_after_s: float,
        tls: TlsFiles | None = None,
    ) -> None:
        self.address = address
        self._roster = roster
        self._tls = tls
        self._is_wanted = is_wanted
        interval = Duration()
        interval.FromNanoseconds(round(load_interval_s * 1e9))
        self._watch_request = worker_pb2.WatchLoadRequest(min_interval=interval)
        self._stuck_after_s = stuck_after_s
        self._max_silence_s = load_interval_s + MAX_SILENCE_S
        self.facts: WorkerFacts | None = None  # of who answered last
        self.worker: Worker | None = None  # while it is one of the roster's
        self.complaint = "not connected yet"  # why there is none
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Connect, watch, reconnect; return once the address is wanted no more."""
        backoff_s = MIN_BACKOFF_S
        while self._is_wanted(self.address):
            try:
                await self._session()
                backoff_s = MIN_BACKOFF_S
            except WorkerRefused as error:
                self._complain(str(error))
            except OSError as error:  # of a certificate's file
                self._complain(str(error))
            except grpc.aio.AioRpcError as error:
                self._complain(f"{error.code().name}: {error.details()}")
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _session(self) -> None:
        """One connection, from GetWorker to the end of the load stream."""
        channel = open_channel(self.address, self._tls)
        worker: Worker | None = None
        watchdog: asyncio.Task[None] | None = None
        try:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            facts = self.facts = WorkerFacts.from_proto(
                await stub.GetWorker(worker_pb2.GetWorkerRequest(), timeout=CONNECT_TIMEOUT_S)
            )
            async for sample in stub.WatchLoad(self._watch_request):
                if sample.epoch != facts.epoch:
                    return  # it restarted in between
                if worker is None:
                    joining = Worker(facts, channel, sample)
                    self._roster.join(joining)
                    self.worker = worker = joining
                    self.complaint = ""
                    watchdog = asyncio.create_task(self._end_legs_when_stuck(worker))
                else:
                    before = worker.takes_work, worker.adapters
                    worker.observe(sample)
                    if (worker.takes_work, worker.adapters) != before:
                        self._roster.tell_change()
        finally:
            if watchdog is not None:
                watchdog.cancel()
            self.worker = None
            if worker is None:
                await channel.close()
            else:
                self._roster.leave(worker)
                closing = asyncio.create_task(_close_when_idle(channel, worker))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _end_legs_when_stuck(self, worker: Worker) -> None:
        tick_s = self._stuck_after_s / 20
        while True:
            complaint = self._stuck(worker)
            if complaint and not worker.is_stuck:
                logger.error("%s %s", worker.name, complaint)
                worker.is_stuck = True
                self._roster.tell_change()
                worker.end_legs(complaint)
            before = time.monotonic()
            await asyncio.sleep(tick_s)
            paused_s = time.monotonic() - before - tick_s
            if paused_s > tick_s:
                worker.forgive(paused_s)

    def _stuck(self, worker: Worker) -> str:
        """What is wrong with a worker whose connection is fine; empty if nothing is."""
        stepless_s, silent_s = worker.stuck_for_s(), worker.silent_for_s()
        if stepless_s >= self._stuck_after_s:
            return f"has work and made no step for {stepless_s:.1f} s"
        if silent_s - self._max_silence_s >= self._stuck_after_s:
            return f"said nothing for {silent_s:.1f} s"  # its event loop hangs, keepalive does not
        return ""

    def _complain(self, complaint: str) -> None:
        # Once per cause, not once per attempt.
        if complaint != self.complaint:
            logger.warning("no usable worker at %s: %s", self.address, complaint)
            self.complaint = complaint


async def _close_when_idle(channel: grpc.aio.Channel, worker: Worker) -> None:
    # Legs on a broken connection end by themselves; those of a draining worker run on.
    await worker.until_idle()
    await channel.close()
