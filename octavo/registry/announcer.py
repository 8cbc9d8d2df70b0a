"""Tells Redis, for one worker, that it lives and which blocks it holds.

    engine thread --publish--> inbox --> Outbox --batches of 128--> Redis
                               snapshot ----------^   (after a start, a loss, and now and then)

One task does all the talking: register, renew, snapshot, flush, in this order. Whatever Redis does,
the worker notices nothing.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from octavo.histogram import Histogram
from octavo.registry.cancellation import end_task
from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.errors import LeaseGone, RegistryError
from octavo.registry.lease import WorkerLease
from octavo.registry.outbox import Batch, Outbox
from octavo.registry.records import WorkerRecord

MAX_BATCH_BLOCKS = 128
MAX_PENDING_EVENTS = 16_384
CLOSE_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)

Snapshot = Callable[[], Awaitable[Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class AnnouncerTiming:
    lease_s: float = 10.0
    renew_s: float = 3.0
    flush_s: float = 0.03  # events of this time go out together
    block_life_s: float = 3600.0
    refresh_s: float = 1200.0  # everything is published again, so that held blocks never expire
    max_retry_s: float = 2.0


@dataclass(slots=True)
class AnnouncerCounters:
    registrations: int = 0
    renewals: int = 0
    published_blocks: int = 0
    removed_blocks: int = 0
    snapshots: int = 0
    gone: int = 0  # Redis had lost our lease, or another process took the worker's id
    lost_writes: int = 0  # Redis came back with less than it had acknowledged
    failures: int = 0
    dropped_events: int = 0


class WorkerAnnouncer:
    """`async with` it for as long as the worker takes requests; `publish` from any thread."""

    def __init__(
        self,
        settings: RedisSettings,
        record: WorkerRecord,
        snapshot: Snapshot,
        timing: AnnouncerTiming | None = None,
    ) -> None:
        self._redis = open_redis(settings, BACKGROUND)
        self._record = record
        self._snapshot = snapshot
        self._timing = timing or AnnouncerTiming()
        self._lease = WorkerLease(
            self._redis,
            record,
            lease_s=self._timing.lease_s,
            block_life_s=self._timing.block_life_s,
        )
        self._inbox: deque[tuple[Sequence[bytes], Sequence[bytes]]] = deque()
        self._outbox = Outbox(MAX_PENDING_EVENTS)
        self._to_republish: deque[bytes] = deque()
        self._snapshot_task: asyncio.Future[Sequence[bytes]] | None = None
        self._removed_meanwhile: set[bytes] = set()  # sent while a snapshot was being taken
        self._needs_snapshot = True
        self._is_registered = False
        self._renew_at = self._refresh_at = 0.0
        self._retry_s = 0.0
        self._wake = asyncio.Event()
        self._is_waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.counters = AnnouncerCounters()

    @property
    def is_registered(self) -> bool:
        return self._is_registered

    @property
    def call_s(self) -> Histogram:
        """Seconds of its calls of Redis."""
        return self._redis.call_s

    def publish(self, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Note that blocks entered and left the cache, in this order. Thread-safe, never raises."""
        loop = self._loop
        if loop is None or not (stored or removed):
            return  # before the start: the first snapshot has it
        self._inbox.append((stored, removed))
        if not self._is_waking:
            self._is_waking = True
            try:
                loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:  # the loop has ended, and the announcer with it
                self._inbox.clear()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="worker-announcer")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop = None
        if self._task is not None:
            await end_task(self._task)
        if self._snapshot_task is not None:
            await end_task(self._snapshot_task)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._lease.unregister()
        except (RegistryError, TimeoutError) as error:
            logger.info("worker %s left without a word: %s", self._record.worker_id, error)
        finally:
            await self._redis.aclose()

    async def _run(self) -> None:
        while True:
            try:
                await self._advance()
                self._retry_s = 0.0
            except LeaseGone as error:
                self.counters.gone += 1
                self._is_registered = False
                self._log_trouble(error)
                await self._pause()
            except RegistryError as error:
                self.counters.failures += 1
                self._log_trouble(error)
                await self._pause()
            except Exception:
                self.counters.failures += 1
                logger.exception("announcing worker %s failed", self._record.worker_id)
                await self._pause()
            else:
                await self._wait()

    async def _advance(self) -> None:
        self._absorb()
        now = asyncio.get_running_loop().time()
        if not self._is_registered:
            await self._register()
        elif now >= self._renew_at:
            await self._renew()
        self._collect_snapshot()
        if self._needs_snapshot or now >= self._refresh_at:
            self._start_snapshot()
        await self._flush()

    def _absorb(self) -> None:
        """Move what other threads have left; events put there later wake us again."""
        self._wake.clear()
        self._is_waking = False
        while self._inbox:
            stored, removed = self._inbox.popleft()
            self._needs_snapshot |= not self._outbox.add(stored, removed)
        self.counters.dropped_events = self._outbox.num_dropped

    async def _register(self) -> None:
        await self._lease.register()
        self._is_registered = True
        self._needs_snapshot = True
        self._schedule_renewal()
        self.counters.registrations += 1

    async def _renew(self) -> None:
        has_all_writes = await self._lease.renew()
        self._schedule_renewal()
        self.counters.renewals += 1
        if not has_all_writes:
            self.counters.lost_writes += 1
            self._needs_snapshot = True

    def _schedule_renewal(self) -> None:
        self._renew_at = asyncio.get_running_loop().time() + self._timing.renew_s

    def _start_snapshot(self) -> None:
        """Ask the engine, which may be in a long step; the lease is renewed meanwhile."""
        if self._snapshot_task is None:
            self._needs_snapshot = False
            self._removed_meanwhile.clear()
            self._refresh_at = asyncio.get_running_loop().time() + self._timing.refresh_s
            self._snapshot_task = asyncio.ensure_future(self._snapshot())
            self._snapshot_task.add_done_callback(lambda _: self._wake.set())

    def _collect_snapshot(self) -> None:
        """Events still in the outbox are sent after it: per block the newest is as new or newer."""
        task = self._snapshot_task
        if task is None or not task.done():
            return
        self._snapshot_task = None
        if task.cancelled() or task.exception() is not None:
            self._refresh_at = self._renew_at  # try again at the next renewal
            error = "cancelled" if task.cancelled() else task.exception()
            logger.warning("worker %s: no snapshot: %s", self._record.worker_id, error)
            return
        self._absorb()
        gone = self._removed_meanwhile
        self._to_republish = deque(key for key in task.result() if key not in gone)
        self.counters.snapshots += 1

    async def _flush(self) -> None:
        """Send until nothing is left or the lease wants renewing."""
        now = asyncio.get_running_loop().time
        while self._to_republish and now() < self._renew_at:
            count = min(MAX_BATCH_BLOCKS, len(self._to_republish))
            await self._send(Batch([self._to_republish[i] for i in range(count)], []))
            for _ in range(count):
                self._to_republish.popleft()
        while self._outbox and not self._to_republish and now() < self._renew_at:
            batch = self._outbox.take(MAX_BATCH_BLOCKS)
            try:
                await self._send(batch)
            except BaseException:
                self._needs_snapshot |= not self._outbox.put_back(batch)
                raise
        if self._to_republish or self._outbox:
            self._wake.set()

    async def _send(self, batch: Batch) -> None:
        if batch.stored:
            await self._lease.publish(batch.stored)
            self.counters.published_blocks += len(batch.stored)
        if batch.removed:
            await self._lease.remove(batch.removed)
            self.counters.removed_blocks += len(batch.removed)
            if self._snapshot_task is not None:
                self._removed_meanwhile.update(batch.removed)

    async def _wait(self) -> None:
        """Until there are events (and then a moment for more to come) or something is due."""
        due_at = min(self._renew_at, self._refresh_at)
        try:
            async with asyncio.timeout_at(due_at):
                await self._wake.wait()
                await asyncio.sleep(self._timing.flush_s)
        except TimeoutError:
            return

    async def _pause(self) -> None:
        self._retry_s = min(self._timing.max_retry_s, max(0.1, 2 * self._retry_s))
        await asyncio.sleep(self._retry_s * random.uniform(0.5, 1.0))

    def _log_trouble(self, error: Exception) -> None:
        level = logging.DEBUG if self._retry_s else logging.WARNING  # once per trouble
        logger.log(level, "worker %s is not announced: %s", self._record.worker_id, error)
