"""The router's view of all workers: where they may be, who is connected, who may be chosen.

    --prefill-address, --decode-address --+--> wanted addresses --> one Connection each
    dns:/// names, resolved again --------+                              |
    registry ----------------------------+                     join, leave by worker id

A worker that is reached by two addresses is one worker: its id from GetWorker decides.
"""

import asyncio
import logging
from functools import partial

from octavo.router.connection import Connection, WorkerRefused
from octavo.router.worker import Role, Worker
from octavo.rpc.tls import TlsFiles

logger = logging.getLogger(__name__)


class Workers:
    """Connected workers by id; owner of the connections."""

    def __init__(
        self,
        *,
        vocab_size: int,
        model_fingerprint: str | None,
        load_interval_s: float,
        stuck_after_s: float,
        tls: TlsFiles | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._model_fingerprint = model_fingerprint
        self._load_interval_s = load_interval_s
        self._stuck_after_s = stuck_after_s
        self._tls = tls
        self._wanted: dict[str, frozenset[str]] = {}  # by source
        self._connections: dict[str, Connection] = {}  # by address
        self._tasks: set[asyncio.Task[None]] = set()  # one a connection
        self._by_id: dict[str, Worker] = {}
        self._changed = asyncio.Event()
        self._by_role: dict[Role, list[Worker]] = {}  # who takes requests; empty after a change

    @property
    def prefills(self) -> list[Worker]:
        """Prefill workers that take requests."""
        return self._with_role(Role.PREFILL)

    @property
    def decodes(self) -> list[Worker]:
        """Decode workers that take requests."""
        return self._with_role(Role.DECODE)

    @property
    def connected(self) -> list[Worker]:
        """All, whether they take requests or not."""
        return list(self._by_id.values())

    @property
    def absent(self) -> list[Connection]:
        """Those to addresses where a worker should be and none is connected."""
        known = self._by_id
        return [
            each
            for each in self._connections.values()
            if each.worker is None and (each.facts is None or each.facts.worker_id not in known)
        ]

    @property
    def is_ready(self) -> bool:
        return bool(self.prefills and self.decodes)

    @property
    def block_size(self) -> int | None:
        """Tokens of a block; None without a worker."""
        return max((w.facts.block_size for w in self._by_id.values()), default=None)

    def context_of(self, model_tokens: int) -> int:
        """Longest prompt and output together: the model's, or what the largest worker holds."""
        largest = max((w.facts.max_context_tokens for w in self.decodes), default=model_tokens)
        return min(largest, model_tokens)

    @property
    def changed(self) -> asyncio.Event:
        """Set once a worker joins, leaves, drains, is stuck or has other adapters; take it before
        you look."""
        return self._changed

    def tell_change(self) -> None:
        """Wake everyone who waits for a change, and nobody who comes later."""
        self._by_role.clear()
        waited_for, self._changed = self._changed, asyncio.Event()
        waited_for.set()

    def drains(self, worker: Worker) -> None:
        """A worker refused a request since it drains: ask it no more."""
        worker.has_refused = True
        self.tell_change()

    def named(self, worker_id: str) -> Worker:
        """The connected worker of this id; KeyError if it is gone."""
        return self._by_id[worker_id]

    def want(self, source: str, addresses: frozenset[str]) -> None:
        """Replace the addresses that one source names."""
        self._wanted[source] = addresses
        for address in addresses - self._connections.keys():
            self._connect(address)

    def wanted_addresses(self) -> frozenset[str]:
        """Where workers may be, by all sources."""
        return frozenset().union(*self._wanted.values())

    async def close(self) -> None:
        """End every connection."""
        self._wanted.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def join(self, worker: Worker) -> None:
        """Take a worker that has just connected.

        Raises:
            WorkerRefused: it serves another model, or is connected already.
        """
        facts = worker.facts
        if facts.vocab_size != self._vocab_size:
            raise WorkerRefused(
                f"{worker.name} has a vocabulary of {facts.vocab_size}, this router's model one "
                f"of {self._vocab_size}"
            )
        if self._model_fingerprint not in (None, facts.model_fingerprint):
            raise WorkerRefused(f"{worker.name} serves other weights than this router's model")
        other = self._by_id.get(facts.worker_id)
        if other is not None and other.facts.epoch == facts.epoch:
            raise WorkerRefused(f"{worker.name} is connected through another address")
        if other is not None:
            other.end_legs("was restarted")
        self._by_id[facts.worker_id] = worker
        self.tell_change()
        logger.info("%s joined", worker.name)

    def leave(self, worker: Worker) -> None:
        """Drop a worker whose connection ended; a no-op unless it is the one that joined."""
        if self._by_id.get(worker.facts.worker_id) is worker:
            del self._by_id[worker.facts.worker_id]
            self.tell_change()
            logger.info("%s left", worker.name)

    def _with_role(self, role: Role) -> list[Worker]:
        if role not in self._by_role:
            taking = [w for w in self._by_id.values() if w.facts.role is role and w.takes_work]
            self._by_role[role] = taking
        return self._by_role[role]

    def _is_wanted(self, address: str) -> bool:
        return address in self.wanted_addresses()

    def _connect(self, address: str) -> None:
        connection = Connection(
            address,
            self,
            is_wanted=self._is_wanted,
            load_interval_s=self._load_interval_s,
            stuck_after_s=self._stuck_after_s,
            tls=self._tls,
        )
        task = asyncio.create_task(connection.run(), name=f"connection to {address}")
        self._connections[address] = connection
        self._tasks.add(task)
        task.add_done_callback(partial(self._forget, address))

    def _forget(self, address: str, task: asyncio.Task[None]) -> None:
        del self._connections[address]
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the connection to %s failed on a defect", address, exc_info=error)
