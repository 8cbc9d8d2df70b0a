"""FleetService: what this router, its workers and its requests are doing at this moment."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import asdict

import grpc

from octavo import __version__
from octavo.inference.v1 import fleet_pb2, fleet_pb2_grpc
from octavo.internal.v1alpha1 import worker_pb2
from octavo.registry.records import new_epoch
from octavo.router.activity import Running
from octavo.router.connection import Connection
from octavo.router.generation import Generator
from octavo.router.request_counts import RequestCounts
from octavo.router.worker import Leg, Role, Worker, WorkerFacts
from octavo.router.workers import Workers
from octavo.rpc.durations import duration
from octavo.rpc.errors import InvalidRequest, errors_to_status

MAX_REQUESTS = 1000
# A worker answers between two steps; one that takes longer is shown without counters.
DESCRIBE_TIMEOUT_S = 1.0
# However many ask, workers are asked so often at most.
MIN_INTERVAL_S = 0.1

Context = grpc.aio.ServicerContext[fleet_pb2.GetFleetRequest, fleet_pb2.GetFleetResponse]
Described = dict[Worker, worker_pb2.GetWorkerResponse | None]

_ROLES = {
    Role.PREFILL: fleet_pb2.FLEET_ROLE_PREFILL,
    Role.DECODE: fleet_pb2.FLEET_ROLE_DECODE,
}
_COUNTERS = (
    "prompt_tokens_computed",
    "prompt_tokens_cached",
    "tokens_generated",
    "computing_steps",
    "step_seconds",
    "preemptions",
    "blocks_transferred",
    "bytes_transferred",
)


class FleetServicer(fleet_pb2_grpc.FleetServiceServicer):
    """Asks the workers when it is asked, never before."""

    def __init__(
        self, model: str, workers: Workers, generator: Generator, counts: RequestCounts
    ) -> None:
        self._model = model
        self._workers = workers
        self._generator = generator
        self._counts = counts
        self._epoch = new_epoch()
        self._started_at = time.monotonic()
        self._asking = asyncio.Lock()
        self._described: Described = {}
        self._described_at = -MIN_INTERVAL_S

    async def GetFleet(
        self, request: fleet_pb2.GetFleetRequest, context: Context
    ) -> fleet_pb2.GetFleetResponse:
        response = fleet_pb2.GetFleetResponse()
        async with errors_to_status(context):
            if request.max_requests > MAX_REQUESTS:
                raise InvalidRequest(
                    "max_requests",
                    f"max_requests must be at most {MAX_REQUESTS}, got {request.max_requests}",
                )
            described = await self._describe()
            response.router.CopyFrom(self._router())
            response.workers.extend(self._worker_list(described))
            oldest = self._generator.activity.running[: request.max_requests]
            response.requests.extend(map(_request, oldest))
        return response

    async def _describe(self) -> Described:
        """What each connected worker says of itself; callers at the same time share the answer."""
        async with self._asking:
            if time.monotonic() - self._described_at >= MIN_INTERVAL_S:
                workers = self._workers.connected
                answers = await asyncio.gather(*map(_describe, workers))
                self._described = dict(zip(workers, answers, strict=True))
                self._described_at = time.monotonic()
            return self._described

    def _router(self) -> fleet_pb2.Router:
        activity, admission = self._generator.activity, self._generator.admission
        counters = fleet_pb2.RequestCounters(
            refused=admission.num_refused,
            prompt_tokens=self._counts.prompt_tokens,
            completion_tokens=self._counts.generated_tokens,
            **{outcome: sums.requests for outcome, sums in activity.ended.items()},
            **asdict(activity.sums()),
        )
        return fleet_pb2.Router(
            epoch=self._epoch,
            version=__version__,
            model=self._model,
            uptime=duration(time.monotonic() - self._started_at),
            is_ready=self._workers.is_ready,
            running_requests=self._generator.num_running,
            queued_prompt_tokens=admission.num_queued_tokens,
            counters=counters,
        )

    def _worker_list(self, described: Described) -> Iterable[fleet_pb2.Worker]:
        found = [_connected(each, described.get(each)) for each in self._workers.connected]
        found += map(_absent, self._workers.absent)
        # Unspecified, of those that never answered, comes last.
        return sorted(found, key=lambda each: (each.role or 3, each.worker_id, each.address))


async def _describe(worker: Worker) -> worker_pb2.GetWorkerResponse | None:
    if worker.is_stuck:
        return None  # it would not answer
    try:
        return await worker.describe(DESCRIBE_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return None


def _connected(worker: Worker, described: worker_pb2.GetWorkerResponse | None) -> fleet_pb2.Worker:
    load = worker.load
    message = _identity(worker.facts)
    message.state = _state(worker)
    message.running_sequences = load.running_sequences
    message.waiting_sequences = load.waiting_sequences
    message.waiting_prompt_tokens = load.waiting_prefill_tokens
    blocks = load.blocks
    message.blocks.total, message.blocks.free = blocks.total, blocks.free
    message.blocks.cached, message.blocks.held = blocks.cached, blocks.held
    if described is not None:
        message.model, message.version = described.model, described.version
        message.counters.SetInParent()
        for name in _COUNTERS:
            setattr(message.counters, name, getattr(described.counters, name))
    return message


def _state(worker: Worker) -> fleet_pb2.WorkerState:
    if worker.is_stuck:
        return fleet_pb2.WORKER_STATE_STUCK
    if not worker.takes_work:
        return fleet_pb2.WORKER_STATE_DRAINING
    return fleet_pb2.WORKER_STATE_READY


def _absent(connection: Connection) -> fleet_pb2.Worker:
    facts = connection.facts
    message = fleet_pb2.Worker(address=connection.address) if facts is None else _identity(facts)
    message.state = fleet_pb2.WORKER_STATE_UNREACHABLE
    message.problem = connection.complaint or "its connection ended"
    return message


def _identity(facts: WorkerFacts) -> fleet_pb2.Worker:
    layout = worker_pb2.KvLayout.FromString(facts.layout)
    return fleet_pb2.Worker(
        worker_id=facts.worker_id,
        address=facts.address,
        epoch=facts.epoch,
        role=_ROLES[facts.role],
        dtype=layout.dtype,
        quantization=layout.quantization,
        block_size=facts.block_size,
    )


def _request(running: Running) -> fleet_pb2.RunningRequest:
    route = running.run.report.route
    return fleet_pb2.RunningRequest(
        request_id=running.request.request_id,
        age=duration(running.age_s),
        prompt_tokens=len(running.request.prompt_token_ids),
        completion_tokens=running.num_output_tokens,
        prefill_worker=_worker_id(route.prefill if route else None),
        decode_worker=_worker_id(route.decode if route else None),
    )


def _worker_id(leg: Leg | None) -> str:
    return leg.worker.facts.worker_id if leg is not None else ""
