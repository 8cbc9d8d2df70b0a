import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FleetRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLEET_ROLE_UNSPECIFIED: _ClassVar[FleetRole]
    FLEET_ROLE_PREFILL: _ClassVar[FleetRole]
    FLEET_ROLE_DECODE: _ClassVar[FleetRole]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_STUCK: _ClassVar[WorkerState]
    WORKER_STATE_UNREACHABLE: _ClassVar[WorkerState]
FLEET_ROLE_UNSPECIFIED: FleetRole
FLEET_ROLE_PREFILL: FleetRole
FLEET_ROLE_DECODE: FleetRole
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_STUCK: WorkerState
WORKER_STATE_UNREACHABLE: WorkerState

class GetFleetRequest(_message.Message):
    __slots__ = ("max_requests",)
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    max_requests: int
    def __init__(self, max_requests: _Optional[int] = ...) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("router", "workers", "requests")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    router: Router
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    requests: _containers.RepeatedCompositeFieldContainer[RunningRequest]
    def __init__(self, router: _Optional[_Union[Router, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[RunningRequest, _Mapping]]] = ...) -> None: ...

class Router(_message.Message):
    __slots__ = ("epoch", "version", "model", "uptime", "is_ready", "running_requests", "queued_prompt_tokens", "counters")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: str
    model: str
    uptime: _duration_pb2.Duration
    is_ready: bool
    running_requests: int
    queued_prompt_tokens: int
    counters: RequestCounters
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., is_ready: _Optional[bool] = ..., running_requests: _Optional[int] = ..., queued_prompt_tokens: _Optional[int] = ..., counters: _Optional[_Union[RequestCounters, _Mapping]] = ...) -> None: ...

class RequestCounters(_message.Message):
    __slots__ = ("requests", "completed", "failed", "cancelled", "refused", "prompt_tokens", "completion_tokens", "cached_prompt_tokens", "transferred_prompt_tokens", "cached_on_prefill_worker", "cached_on_decode_worker")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_ON_PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    CACHED_ON_DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
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
    def __init__(self, requests: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., refused: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., transferred_prompt_tokens: _Optional[int] = ..., cached_on_prefill_worker: _Optional[int] = ..., cached_on_decode_worker: _Optional[int] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker_id", "address", "epoch", "role", "state", "problem", "model", "version", "dtype", "quantization", "block_size", "running_sequences", "waiting_sequences", "waiting_prompt_tokens", "blocks", "counters")
    class Blocks(_message.Message):
        __slots__ = ("total", "free", "cached", "held")
        TOTAL_FIELD_NUMBER: _ClassVar[int]
        FREE_FIELD_NUMBER: _ClassVar[int]
        CACHED_FIELD_NUMBER: _ClassVar[int]
        HELD_FIELD_NUMBER: _ClassVar[int]
        total: int
        free: int
        cached: int
        held: int
        def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    epoch: int
    role: FleetRole
    state: WorkerState
    problem: str
    model: str
    version: str
    dtype: str
    quantization: str
    block_size: int
    running_sequences: int
    waiting_sequences: int
    waiting_prompt_tokens: int
    blocks: Worker.Blocks
    counters: WorkerCounters
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[_Union[FleetRole, str]] = ..., state: _Optional[_Union[WorkerState, str]] = ..., problem: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., block_size: _Optional[int] = ..., running_sequences: _Optional[int] = ..., waiting_sequences: _Optional[int] = ..., waiting_prompt_tokens: _Optional[int] = ..., blocks: _Optional[_Union[Worker.Blocks, _Mapping]] = ..., counters: _Optional[_Union[WorkerCounters, _Mapping]] = ...) -> None: ...

class WorkerCounters(_message.Message):
    __slots__ = ("prompt_tokens_computed", "prompt_tokens_cached", "tokens_generated", "computing_steps", "step_seconds", "preemptions", "blocks_transferred", "bytes_transferred")
    PROMPT_TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_CACHED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    tokens_generated: int
    computing_steps: int
    step_seconds: float
    preemptions: int
    blocks_transferred: int
    bytes_transferred: int
    def __init__(self, prompt_tokens_computed: _Optional[int] = ..., prompt_tokens_cached: _Optional[int] = ..., tokens_generated: _Optional[int] = ..., computing_steps: _Optional[int] = ..., step_seconds: _Optional[float] = ..., preemptions: _Optional[int] = ..., blocks_transferred: _Optional[int] = ..., bytes_transferred: _Optional[int] = ...) -> None: ...

class RunningRequest(_message.Message):
    __slots__ = ("request_id", "age", "prompt_tokens", "completion_tokens", "prefill_worker", "decode_worker")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    age: _duration_pb2.Duration
    prompt_tokens: int
    completion_tokens: int
    prefill_worker: str
    decode_worker: str
    def __init__(self, request_id: _Optional[str] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ...) -> None: ...
