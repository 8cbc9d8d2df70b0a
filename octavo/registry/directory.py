"""Keeps the list of live workers that a router works with.

    Redis --every second--> WorkerDirectory --workers(), on_change--> router

Three ways for a worker to be missing in Redis are told apart: it left (it says so, and goes at
once), its lease ended or Redis restarted empty (it is kept for a while, so that it can register
again), Redis is out of reach (all are kept: their own streams show the router who is dead).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from octavo.registry.cancellation import end_task
from octavo.registry.connection import BACKGROUND, Argument, RedisSettings, open_redis
from octavo.registry.errors import MalformedReply, RegistryError
from octavo.registry.keys import ModelKeys
from octavo.registry.records import FIELDS, MalformedRecord, WorkerRecord, decode_worker_id
from octavo.registry.script import READ_WORKERS

MAX_WORKERS = 1024
START_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)

OnChange = Callable[[list[WorkerRecord]], None]


@dataclass(frozen=True, slots=True)
class DirectoryTiming:
    refresh_s: float = 1.0
    grace_s: float = 6.0  # renewing takes a worker 3 s, and up to 2 s more after an outage


@dataclass(slots=True)
class DirectoryCounters:
    refreshes: int = 0
    failures: int = 0
    malformed: int = 0  # records dropped


class WorkerDirectory:
    """Live workers of some models; the last known ones when Redis cannot be asked."""

    def __init__(
        self,
        settings: RedisSettings,
        fingerprints: Sequence[str],
        *,
        on_change: OnChange | None = None,
        timing: DirectoryTiming | None = None,
    ) -> None:
        self._redis = open_redis(settings, BACKGROUND)
        self._fingerprints = list(fingerprints)
        self._on_change = on_change
        self._timing = timing or DirectoryTiming()
        self._known: dict[tuple[str, str], WorkerRecord] = {}  # (fingerprint, worker id)
        self._missing_since: dict[tuple[str, str], float] = {}
        self._task: asyncio.Task[None] | None = None
        self.is_reachable = False
        self.counters = DirectoryCounters()

    def workers(self) -> list[WorkerRecord]:
        return list(self._known.values())

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._refresh_all()
        except TimeoutError:
            self.counters.failures += 1
        self._task = asyncio.create_task(self._run(), name="worker-directory")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            await end_task(self._task)
        await self._redis.aclose()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._timing.refresh_s)
            try:
                await self._refresh_all()
            except Exception:
                self.counters.failures += 1
                logger.exception("refreshing the list of workers failed")

    async def _refresh_all(self) -> None:
        before = dict(self._known)
        try:
            for fingerprint in self._fingerprints:
                await self._refresh(fingerprint)
        except RegistryError as error:
            self.counters.failures += 1
            if self.is_reachable:
                logger.warning("keeping the last known workers: %s", error)
            self.is_reachable = False
        else:
            self.counters.refreshes += 1
            self.is_reachable = True
        if self._on_change is not None and self._known != before:
            self._on_change(self.workers())

    async def _refresh(self, fingerprint: str) -> None:
        """Take what Redis says about one model's workers."""
        ids = await self._read_ids(fingerprint)
        now = asyncio.get_running_loop().time()
        present = set()
        for worker_id, values in zip(ids, await self._read_records(fingerprint, ids), strict=True):
            key = (fingerprint, worker_id)
            *fields, left_epoch = values or [None]
            if values and left_epoch is None:
                record = self._parse(fingerprint, worker_id, fields)
                if record is not None:
                    self._known[key] = record
                    present.add(key)
            elif key in self._known and left_epoch == str(self._known[key].epoch).encode():
                del self._known[key]
                self._missing_since.pop(key, None)
        self._forget_missing(fingerprint, present, now)

    def _forget_missing(self, fingerprint: str, present: set[tuple[str, str]], now: float) -> None:
        for key in [key for key in self._known if key[0] == fingerprint]:
            if key in present:
                self._missing_since.pop(key, None)
            elif now - self._missing_since.setdefault(key, now) >= self._timing.grace_s:
                del self._known[key], self._missing_since[key]

    async def _read_ids(self, fingerprint: str) -> list[str]:
        """Worker ids; SRANDMEMBER is SMEMBERS with an upper bound."""
        reply = await self._redis.command(
            "SRANDMEMBER", ModelKeys.of(fingerprint).workers, MAX_WORKERS
        )
        if not isinstance(reply, list | set):
            raise MalformedReply(f"worker ids are a {type(reply).__name__}")
        ids = []
        for member in reply:
            try:
                ids.append(decode_worker_id(member))
            except MalformedRecord:
                self.counters.malformed += 1
        return ids

    async def _read_records(self, fingerprint: str, ids: list[str]) -> list[list[object]]:
        if not ids:
            return []
        keys = ModelKeys.of(fingerprint)
        args: list[Argument] = [len(FIELDS) + 1, *FIELDS, "left", *ids]
        records = [keys.worker(worker_id) for worker_id in ids]
        reply = await self._redis.run(READ_WORKERS, [keys.workers, *records], args)
        if isinstance(reply, list) and len(reply) == len(ids):
            lists = [values for values in reply if isinstance(values, list)]
            if len(lists) == len(ids):
                return lists
        raise MalformedReply(f"{len(ids)} worker records gave {str(reply)[:80]!r}")

    def _parse(self, fingerprint: str, worker_id: str, fields: list[object]) -> WorkerRecord | None:
        try:
            record = WorkerRecord.from_fields(worker_id, fields)
            if record.fingerprint != fingerprint:
                raise MalformedRecord("it is of another model")
        except MalformedRecord as error:
            self.counters.malformed += 1
            logger.debug("dropped the record of a worker: %s", error)
            return None
        return record
