"""What a failed leg means to the caller.

worker says                      caller sees
INVALID_ARGUMENT, UNIMPLEMENTED  the same, with the field
NOT_FOUND                        the same, of an adapter that was unloaded meanwhile
RESOURCE_EXHAUSTED               the same, with when to come back
DEADLINE_EXCEEDED                the same
INTERNAL, UNKNOWN                INTERNAL: a defect, in the worker's log
UNAVAILABLE, for it drains       nothing: the run goes on with another worker, if there is one
all others, or a lost link       UNAVAILABLE: another try may well succeed
"""

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.router.worker import Worker
from octavo.rpc.errors import (
    Draining,
    Duplicate,
    Expired,
    InvalidRequest,
    NotFound,
    NoWorker,
    Overloaded,
    Precondition,
    RequestError,
    Unsupported,
)

DEFAULT_RETRY_S = 1.0


class LocalTailTooLong(Exception):
    """A decode worker lacks too much of the prompt to compute it alone; nothing was sampled."""


class WorkerDrains(NoWorker):
    """A worker that drains refused a leg; nothing was sampled."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(f"{worker.name} is draining; try again")
        self.worker = worker


class WorkerDefect(RequestError):
    """A worker failed on a defect; its log has the traceback."""

    code = grpc.StatusCode.INTERNAL


def leg_failure(worker: Worker, error: grpc.aio.AioRpcError) -> RequestError:
    """The caller's view of a status that ended a leg on `worker`."""
    code, text = error.code(), error.details() or ""
    field, retry_after_s, reason = _details(error)
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(field or "request", text)
        case grpc.StatusCode.NOT_FOUND if field:
            return NotFound(text, field=field)
        case grpc.StatusCode.UNIMPLEMENTED if field:
            return Unsupported(field)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"{worker.name}: {text}", retry_after_s or DEFAULT_RETRY_S)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Expired("the deadline passed while the request ran")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return WorkerDefect(f"{worker.name} failed; see its log")
        case grpc.StatusCode.UNAVAILABLE if reason == Draining.reason:
            return WorkerDrains(worker)
        case _:
            return worker_lost(worker, f"ended the request: {code.name}: {text}")


def adapter_failure(worker: Worker, error: grpc.aio.AioRpcError) -> RequestError:
    """The caller's view of a status that ended the loading or unloading of an adapter."""
    text = f"{worker.name}: {error.details() or ''}"
    field, *_ = _details(error)
    match error.code():
        case grpc.StatusCode.ALREADY_EXISTS:
            return Duplicate(text, field=field)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return Precondition(field or "lora_root", text)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(field or "path", text)
        case _:
            return leg_failure(worker, error)


def worker_lost(worker: Worker, reason: str) -> NoWorker:
    """A worker died, got stuck or gave the request up."""
    role = worker.facts.role.value
    return NoWorker(
        f"{worker.name} {reason}; try again, and if this lasts start a {role} worker with "
        f"`octavo {role}-worker`"
    )


def _details(error: grpc.aio.AioRpcError) -> tuple[str | None, float | None, str]:
    """The field and the delay that a status names, if any, and its reason."""
    field: str | None = None
    reason = ""
    retry_after_s: float | None = None
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # has all that it reads
    for detail in status.details if status is not None else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            field, reason = info.metadata.get("field") or None, info.reason
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return field, retry_after_s, reason
