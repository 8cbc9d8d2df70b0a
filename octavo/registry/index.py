"""Asks Redis, for one prompt, how many of its leading blocks each worker holds.

    lookup --starts--> call --EVALSHA--> Redis
       |  waits 20 ms    |
       |<---- reply -----|      in time: {worker id: blocks}
       |<- {}            |      too late: the call goes on behind and ends by its own timeout

The caller's time and the call's are apart on purpose. Giving up, or being cancelled, kills neither
a connection that is just being opened (TLS may take longer than one budget, each time) nor one
whose reply is a little late, and it says nothing about Redis; only how the call itself ends does.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from octavo.histogram import CALL_S, Histogram
from octavo.registry.breaker import CircuitBreaker
from octavo.registry.cancellation import end_task
from octavo.registry.connection import (
    REQUEST_PATH,
    RedisConnection,
    RedisSettings,
    open_redis,
)
from octavo.registry.errors import MalformedReply, RegistryError
from octavo.registry.keys import ModelKeys
from octavo.registry.script import LOOKUP

MAX_KEYS_PER_CALL = 256
MAX_WORKERS = 1024
LOOKUP_BUDGET_S = 0.020
MAX_CALLS = 8  # Redis has one thread: more at a time only wait there, and cost a connection each

logger = logging.getLogger(__name__)

Worker = tuple[str, int]  # worker id, epoch


@dataclass(slots=True)
class IndexCounters:
    lookups: int = 0
    hits: int = 0  # look-ups that found at least one block
    over_budget: int = 0  # returned before an answer came, or before there was a turn to ask
    skipped: int = 0  # the breaker was open
    failures: int = 0
    malformed: int = 0
    # What callers waited: less than the calls that they left behind.
    wait_s: Histogram = field(default_factory=lambda: Histogram(CALL_S))


class PrefixIndex:
    """The prefix index of one model, seen from a router. Never raises, never waits long."""

    def __init__(
        self,
        settings: RedisSettings,
        fingerprint: str,
        *,
        budget_s: float = LOOKUP_BUDGET_S,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._redis: RedisConnection = open_redis(settings, REQUEST_PATH)
        self._keys = ModelKeys.of(fingerprint)
        self._budget_s = budget_s
        self._breaker = breaker or CircuitBreaker()
        self._calls: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self.counters = IndexCounters()

    @property
    def breaker_is_open(self) -> bool:
        """Whether Redis failed so often that it is not asked for now."""
        return self._breaker.is_open

    @property
    def call_s(self) -> Histogram:
        """Seconds of its calls of Redis."""
        return self._redis.call_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(end_task(call) for call in set(self._calls)))
        await self._redis.aclose()

    async def lookup(self, keys: Sequence[bytes], workers: Sequence[Worker]) -> dict[str, int]:
        """Leading blocks per worker id, workers with none left out; {} on any trouble."""
        self.counters.lookups += 1
        if not keys or not workers:
            return {}
        now = asyncio.get_running_loop().time
        started = now()
        matched: dict[str, int] = {}
        try:
            async with asyncio.timeout_at(started + self._budget_s):
                await self._turns.acquire()
                call = self._start_call(keys, workers[:MAX_WORKERS], matched)
                if call is not None:
                    await asyncio.wait({call})
        except TimeoutError:
            self.counters.over_budget += 1
        self.counters.wait_s.add(now() - started)
        self.counters.hits += bool(matched)
        return dict(matched)  # what is known by now; the call may go on writing to its own

    def _start_call(
        self, keys: Sequence[bytes], workers: Sequence[Worker], matched: dict[str, int]
    ) -> asyncio.Task[None] | None:
        """Take one turn, unless the breaker is open."""
        if not self._breaker.allows_call():
            self.counters.skipped += 1
            self._turns.release()
            return None
        call = asyncio.create_task(self._call(keys, workers, matched))
        self._calls.add(call)
        call.add_done_callback(self._end_call)
        return call

    def _end_call(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._turns.release()

    async def _call(
        self, keys: Sequence[bytes], workers: Sequence[Worker], matched: dict[str, int]
    ) -> None:
        """Fill `matched`, 256 keys at a time, and tell the breaker how it went."""
        try:
            for start in range(0, len(keys), MAX_KEYS_PER_CALL):
                chunk = keys[start : start + MAX_KEYS_PER_CALL]
                counts = await self._ask(chunk, workers)
                for (worker_id, _), count in zip(workers, counts, strict=True):
                    if count:
                        matched[worker_id] = start + count
                workers = [w for w, n in zip(workers, counts, strict=True) if n == len(chunk)]
                if not workers:
                    break
            self._breaker.succeeded()
        except MalformedReply as error:
            self.counters.malformed += 1
            self._breaker.failed()
            logger.warning("prefix index: %s", error)
        except RegistryError as error:
            self.counters.failures += 1
            self._breaker.failed()
            logger.debug("prefix index: %s", error)
        except Exception:
            self.counters.failures += 1
            self._breaker.failed()
            logger.exception("prefix index look-up died")

    async def _ask(self, keys: Sequence[bytes], workers: Sequence[Worker]) -> list[int]:
        args: list[str | int] = [len(workers)]
        for worker_id, epoch in workers:
            args += (worker_id, epoch)
        reply = await self._redis.run(LOOKUP, [self._keys.block(key) for key in keys], args)
        if isinstance(reply, list) and reply and isinstance(reply[0], list):
            counts = [n for n in reply[0] if isinstance(n, int) and 0 <= n <= len(keys)]
            if len(counts) == len(reply[0]) == len(workers):
                return counts
        raise MalformedReply(f"a look-up of {len(keys)} keys gave {str(reply)[:80]!r}")
