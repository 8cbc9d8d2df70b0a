"""The fleet's LoRA adapters: which workers have what, and loading or unloading one on all of them.

load streams --> Worker.adapters --find--> what a request means by a name
LoadAdapter --> every worker at once --> one failed? --> unloaded where it was new
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.router.adapter import AdapterFacts
from octavo.router.failures import adapter_failure
from octavo.router.worker import Worker
from octavo.router.workers import Workers
from octavo.rpc.errors import NotFound, NoWorker, Precondition, RequestError

LOAD_TIMEOUT_S = 120.0
UNLOAD_TIMEOUT_S = 10.0
# Until the workers' load streams say what their answers said.
ANNOUNCE_TIMEOUT_S = 5.0

Result = TypeVar("Result")
Answer = worker_pb2.LoadAdapterResponse | worker_pb2.UnloadAdapterResponse | RequestError


class Adapters:
    """What a router knows of adapters, and does with them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._all: dict[AdapterFacts, list[Worker]] = {}
        self._as_of: asyncio.Event | None = None  # another one after every change
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def all(self) -> dict[AdapterFacts, list[Worker]]:
        """Every adapter with the connected workers that have it, in order of names."""
        if self._as_of is not self._workers.changed:
            self._as_of = self._workers.changed
            found: dict[AdapterFacts, list[Worker]] = {}
            for worker in self._workers.connected:
                for adapter in worker.adapters:
                    found.setdefault(adapter, []).append(worker)
            self._all = {facts: found[facts] for facts in sorted(found, key=lambda each: each.name)}
        return self._all

    def find(self, name: str, field: str = "lora_adapter") -> AdapterFacts:
        """What a request means by a name.

        Raises:
            NotFound: no worker has such an adapter; NoWorker: there is no worker.
            Precondition: it is not clear which weights are meant.
        """
        everyone = self.all()
        found = {facts: workers for facts, workers in everyone.items() if facts.name == name}
        if len(found) == 1:
            return next(iter(found))
        if not self._workers.connected:
            raise NoWorker(f"no worker is connected, so it is not known who has adapter {name!r}")
        if not found:
            names = ", ".join(repr(facts.name) for facts in everyone) or "none"
            raise NotFound(
                f"adapter {name[:128]!r} is not loaded; loaded: {names}"[:1000], field=field
            )
        # Such as of one worker that was started with an older version.
        usable = [
            facts
            for facts, workers in found.items()
            if len({worker.facts.role for worker in workers}) == 2
        ]
        if len(usable) != 1:
            raise Precondition(
                field,
                f"workers have different weights under the name {name!r}; unload it, then load it "
                "again",
            )
        return usable[0]

    async def load(self, name: str, path: str) -> AdapterFacts:
        """Load on every worker or on none, even if the caller leaves.

        Raises:
            NoWorker: a role has no worker, or one was lost.
            RequestError: why a worker refused.
        """
        return await self._finish(self._load(name, path))

    async def unload(self, name: str) -> None:
        """Unload wherever it is loaded.

        Raises:
            NotFound: nowhere.
            RequestError: why a worker failed; on the others it is unloaded.
        """
        await self._finish(self._unload(name))

    async def _finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _load(self, name: str, path: str) -> AdapterFacts:
        request = worker_pb2.LoadAdapterRequest(name=name, path=path)
        async with self._changing:
            if not self._workers.is_ready:
                raise NoWorker("adapters are loaded once prefill and decode workers are connected")
            workers = self._workers.prefills + self._workers.decodes
            answers = await asyncio.gather(*(_load_on(worker, request) for worker in workers))
            loaded = {
                worker: answer
                for worker, answer in zip(workers, answers, strict=True)
                if isinstance(answer, worker_pb2.LoadAdapterResponse)
            }
            found = {AdapterFacts.of(answer.adapter) for answer in loaded.values()}
            if len(loaded) == len(workers) and len(found) == 1:
                (facts,) = found
                await self._wait_until(lambda: all(w.holds(facts) for w in self._still(workers)))
                return facts
            new = [worker for worker, answer in loaded.items() if answer.is_new]
            await asyncio.gather(*(_unload_on(worker, name) for worker in new))
            await self._wait_until(lambda: not self._are_told(new, name))
            for answer in answers:
                if isinstance(answer, RequestError):
                    raise answer
            raise Precondition("path", f"workers found different weights at {path!r}")

    async def _unload(self, name: str) -> None:
        async with self._changing:
            workers = [w for facts, ws in self.all().items() if facts.name == name for w in ws]
            if not workers:
                self.find(name, field="name")  # raises why
            failures = await asyncio.gather(*(_unload_on(worker, name) for worker in workers))
            for failure in failures:
                if failure is not None:
                    raise failure
            await self._wait_until(lambda: not self._are_told(workers, name))

    def _are_told(self, workers: list[Worker], name: str) -> bool:
        """Whether one of these still says that it has such an adapter."""
        return any(facts.name == name for w in self._still(workers) for facts in w.adapters)

    def _still(self, workers: list[Worker]) -> list[Worker]:
        """Those that are connected."""
        connected = self._workers.connected
        return [worker for worker in workers if worker in connected]

    async def _wait_until(self, is_told: Callable[[], bool]) -> None:
        """Until the load streams say so, which they do at once; their word is what counts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                changed = self._workers.changed
                while not is_told():
                    await changed.wait()
                    changed = self._workers.changed


async def _load_on(
    worker: Worker, request: worker_pb2.LoadAdapterRequest
) -> worker_pb2.LoadAdapterResponse | RequestError:
    try:
        answer: worker_pb2.LoadAdapterResponse = await _stub(worker).LoadAdapter(
            request, timeout=LOAD_TIMEOUT_S
        )
    except grpc.aio.AioRpcError as error:
        return adapter_failure(worker, error)
    return answer


async def _unload_on(worker: Worker, name: str) -> RequestError | None:
    request = worker_pb2.UnloadAdapterRequest(name=name)
    try:
        await _stub(worker).UnloadAdapter(request, timeout=UNLOAD_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        failure = adapter_failure(worker, error)
        return None if isinstance(failure, NotFound) else failure
    return None


def _stub(worker: Worker) -> worker_pb2_grpc.WorkerServiceStub:
    return worker_pb2_grpc.WorkerServiceStub(worker.channel)
