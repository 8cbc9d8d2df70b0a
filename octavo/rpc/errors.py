"""Failures that a caller may see, and the one place where they become gRPC statuses.

    RequestError
      InvalidRequest   INVALID_ARGUMENT     the caller's fault; names the field and the limit
      NotFound         NOT_FOUND
      Unsupported      UNIMPLEMENTED        a field of a feature that this version lacks
      Duplicate        ALREADY_EXISTS
      Precondition     FAILED_PRECONDITION  two processes do not fit together; names the field
      Unauthenticated  UNAUTHENTICATED      no API key, or one that is not known
      Overloaded       RESOURCE_EXHAUSTED   carries when to come back
      NoWorker         UNAVAILABLE          says what to do and when to come back
      Draining         UNAVAILABLE          this process takes no new work; another one does
      Aborted          ABORTED              a newer attempt took over
      DataLoss         DATA_LOSS            bytes failed their check
      Expired          DEADLINE_EXCEEDED

Anything else is a defect: it is logged and becomes INTERNAL without its text.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

logger = logging.getLogger(__name__)

DOMAIN = "octavo"
UNAVAILABLE_RETRY_S = 1.0  # a worker joins, and endpoints change, within about so long
STATUS_DETAILS_KEY = "grpc-status-details-bin"  # in trailing metadata, by gRPC's convention
# A status of more than 8 KiB may be replaced by gRPC's own. The message goes twice or three times,
# once with 3 bytes for each byte that is not ASCII.
MAX_MESSAGE_BYTES = 1200


class RequestError(Exception):
    """A failure with a status code; subclasses choose the code."""

    code = grpc.StatusCode.INTERNAL
    reason: str | None = None  # of ErrorInfo; by default the code's name

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequest(RequestError):
    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field=field)


class NotFound(RequestError):
    code = grpc.StatusCode.NOT_FOUND


class Unsupported(RequestError):
    code = grpc.StatusCode.UNIMPLEMENTED

    def __init__(self, field: str, value: str = "") -> None:
        named = f"{field} {value}" if value else field
        super().__init__(f"{named} is not supported by this version; leave it unset", field=field)


class Duplicate(RequestError):
    code = grpc.StatusCode.ALREADY_EXISTS


class Precondition(RequestError):
    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field=field)


class Unauthenticated(RequestError):
    code = grpc.StatusCode.UNAUTHENTICATED


class Overloaded(RequestError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class NoWorker(RequestError):
    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self, message: str, retry_after_s: float = UNAVAILABLE_RETRY_S) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Draining(NoWorker):
    """Nothing was begun: another process may run the request at once."""

    reason = "DRAINING"


class Aborted(RequestError):
    code = grpc.StatusCode.ABORTED


class DataLoss(RequestError):
    code = grpc.StatusCode.DATA_LOSS


class Expired(RequestError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED


def status_of(error: RequestError) -> status_pb2.Status:
    """The google.rpc.Status of an error: ErrorInfo, then BadRequest or RetryInfo where they fit."""
    number, _ = error.code.value
    status = status_pb2.Status(code=number, message=error.message)
    metadata = {"field": error.field} if error.field else {}
    reason = error.reason or code_pb2.Code.Name(number)
    _attach(status, error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        _attach(status, error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        _attach(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


class AbortableContext(Protocol):
    """What `errors_to_status` needs of a call."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...

    async def abort_with_status(self, status: grpc.Status) -> NoReturn: ...


@asynccontextmanager
async def errors_to_status(context: AbortableContext) -> AsyncIterator[None]:
    """Turn exceptions of the block into the call's status. Cancellation passes through."""
    try:
        yield
    except RequestError as error:
        await context.abort_with_status(rpc_status.to_status(status_of(error)))
    except grpc.aio.AbortError:
        raise
    except Exception:
        logger.exception("a request failed on a defect")
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; see the server's log")


def _attach(status: status_pb2.Status, detail: Any) -> None:
    packed = AnyProto()
    packed.Pack(detail)
    status.details.append(packed)
