"""One worker's entries in Redis: its record, its lease and its blocks, each write one script.

Every write carries the epoch, so that a dead incarnation can change nothing, and a sequence that
the server keeps, so that a server which comes back with less than it acknowledged is noticed.
"""

from collections.abc import Sequence

from octavo.registry.connection import Argument, RedisConnection
from octavo.registry.records import WorkerRecord
from octavo.registry.script import PUBLISH, REGISTER, REMOVE, RENEW, UNREGISTER

LEFT_NOTE_S = 30.0


class WorkerLease:
    """Raises LeaseGone when Redis lost the lease or another process took the worker's id."""

    def __init__(
        self, redis: RedisConnection, record: WorkerRecord, *, lease_s: float, block_life_s: float
    ) -> None:
        self._redis = redis
        self._record = record
        self._keys = record.keys
        self._worker_key = self._keys.worker(record.worker_id)
        self._lease_ms = _ms(lease_s)
        self._block_life_ms = _ms(block_life_s)
        self._sequence = 0  # of the last write that Redis acknowledged
        self._may_take_over = True

    async def register(self) -> None:
        """Start the lease; only the first time does it end another incarnation's."""
        record = self._record
        args: list[Argument] = [record.worker_id, str(record.epoch), self._lease_ms]
        args.append("takeover" if self._may_take_over else "renewal")
        for name, value in record.to_fields().items():
            args += (name, value)
        await self._redis.run(REGISTER, [self._keys.workers, self._worker_key], args)
        self._may_take_over = False
        self._sequence = 0

    async def renew(self) -> bool:
        """Prolong the lease; False when the server has lost writes."""
        args: list[Argument] = [
            self._record.worker_id,
            str(self._record.epoch),
            self._lease_ms,
        ]
        reply = await self._redis.run(RENEW, [self._keys.workers, self._worker_key], args)
        if not isinstance(reply, bytes) or not reply.isdigit() or len(reply) > 19:
            return False
        return int(reply) >= self._sequence

    async def publish(self, block_keys: Sequence[bytes]) -> None:
        args = self._write_args()
        args += (self._block_life_ms, self._keys.worker_prefix)
        await self._redis.run(PUBLISH, self._redis_keys(block_keys), args)
        self._sequence += 1

    async def remove(self, block_keys: Sequence[bytes]) -> None:
        await self._redis.run(REMOVE, self._redis_keys(block_keys), self._write_args())
        self._sequence += 1

    async def unregister(self) -> None:
        args: list[Argument] = [str(self._record.epoch), _ms(LEFT_NOTE_S)]
        await self._redis.run(UNREGISTER, [self._worker_key], args)

    def _redis_keys(self, block_keys: Sequence[bytes]) -> list[bytes]:
        return [self._worker_key, *(self._keys.block(key) for key in block_keys)]

    def _write_args(self) -> list[Argument]:
        return [self._record.worker_id, str(self._record.epoch), self._sequence + 1]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
