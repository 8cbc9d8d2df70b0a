"""One moment of a service, as a router told it: plain values, safe to print."""

from dataclasses import dataclass
from enum import Enum

from octavo.inference.v1 import fleet_pb2
from octavo.rpc.durations import seconds_of


class State(Enum):
    READY = "ready"
    DRAINING = "draining"
    STUCK = "stuck"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"  # to this version


@dataclass(frozen=True, slots=True)
class RequestCounters:
    """Over all requests since the router's start; tokens as in their usage."""

    requests: int
    completed: int
    failed: int
    cancelled: int
    refused: int
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    transferred_prompt_tokens: int
    cached_on_prefill_worker: int
    cached_on_decode_worker: int


@dataclass(frozen=True, slots=True)
class RouterState:
    """The router that answered."""

    epoch: int  # of its process
    version: str
    model: str
    uptime_s: float
    is_ready: bool
    running_requests: int
    queued_prompt_tokens: int
    counters: RequestCounters


@dataclass(frozen=True, slots=True)
class Blocks:
    """A pool; free + cached + held = total."""

    total: int
    free: int
    cached: int
    held: int


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """Since the worker's start."""

    prompt_tokens_computed: int
    prompt_tokens_cached: int
    tokens_generated: int
    computing_steps: int
    step_seconds: float
    preemptions: int
    blocks_transferred: int
    bytes_transferred: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker; one that never answered has an address alone."""

    worker_id: str
    address: str
    epoch: int
    role: str  # "prefill", "decode" or "" while it is not known
    state: State
    problem: str
    model: str
    version: str
    dtype: str
    quantization: str
    block_size: int
    running_sequences: int
    waiting_sequences: int
    waiting_prompt_tokens: int
    blocks: Blocks
    counters: WorkerCounters | None  # None: it did not answer in time

    @property
    def name(self) -> str:
        """Its id, or the end of its address: a socket's folders are the same for all."""
        return self.worker_id or self.address.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class RunningRequest:
    request_id: str
    age_s: float
    prompt_tokens: int
    completion_tokens: int
    prefill_worker: str
    decode_worker: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment."""

    taken_at: float  # time.monotonic()
    router: RouterState
    workers: tuple[WorkerState, ...]
    requests: tuple[RunningRequest, ...]  # the oldest first, perhaps not all

    @classmethod
    def of(cls, message: fleet_pb2.GetFleetResponse, taken_at: float) -> "Snapshot":
        return cls(
            taken_at,
            _router(message.router),
            tuple(map(_worker, message.workers)),
            tuple(map(_request, message.requests)),
        )


_STATES = {
    fleet_pb2.WORKER_STATE_READY: State.READY,
    fleet_pb2.WORKER_STATE_DRAINING: State.DRAINING,
    fleet_pb2.WORKER_STATE_STUCK: State.STUCK,
    fleet_pb2.WORKER_STATE_UNREACHABLE: State.UNREACHABLE,
}
_ROLES = {fleet_pb2.FLEET_ROLE_PREFILL: "prefill", fleet_pb2.FLEET_ROLE_DECODE: "decode"}


def clean(text: str) -> str:
    """Without what could move a cursor or colour a terminal: others chose these names."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _router(message: fleet_pb2.Router) -> RouterState:
    return RouterState(
        epoch=message.epoch,
        version=clean(message.version),
        model=clean(message.model),
        uptime_s=seconds_of(message.uptime),
        is_ready=message.is_ready,
        running_requests=message.running_requests,
        queued_prompt_tokens=message.queued_prompt_tokens,
        counters=RequestCounters(
            **{name: getattr(message.counters, name) for name in RequestCounters.__slots__}
        ),
    )


def _worker(message: fleet_pb2.Worker) -> WorkerState:
    blocks, counters = message.blocks, None
    if message.HasField("counters"):
        values = {name: getattr(message.counters, name) for name in WorkerCounters.__slots__}
        counters = WorkerCounters(**values)
    return WorkerState(
        worker_id=clean(message.worker_id),
        address=clean(message.address),
        epoch=message.epoch,
        role=_ROLES.get(message.role, ""),
        state=_STATES.get(message.state, State.UNKNOWN),
        problem=clean(message.problem),
        model=clean(message.model),
        version=clean(message.version),
        dtype=clean(message.dtype),
        quantization=clean(message.quantization),
        block_size=message.block_size,
        running_sequences=message.running_sequences,
        waiting_sequences=message.waiting_sequences,
        waiting_prompt_tokens=message.waiting_prompt_tokens,
        blocks=Blocks(blocks.total, blocks.free, blocks.cached, blocks.held),
        counters=counters,
    )


def _request(message: fleet_pb2.RunningRequest) -> RunningRequest:
    return RunningRequest(
        request_id=clean(message.request_id),
        age_s=seconds_of(message.age),
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        prefill_worker=clean(message.prefill_worker),
        decode_worker=clean(message.decode_worker),
    )
