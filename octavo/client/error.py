"""What went wrong with a call, read from its status and the google.rpc details beside it."""

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class OctavoError(Exception):
    """A call failed.

    Attributes:
        code: the gRPC status code.
        message: for people; names the field and the limit where one was broken.
        field: the request's field at fault, if one is.
        retry_after_s: when the service wants to be asked again, if it says so.
        is_from_service: false when the status was made on the way (nobody listens, deadline).
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        is_from_service: bool = False,
    ) -> None:
        hint = "" if retry_after_s is None else f" (retry after {retry_after_s:g} s)"
        super().__init__(f"{code.name}: {message}{hint}")
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s
        self.is_from_service = is_from_service

    @classmethod
    def of(cls, error: grpc.RpcError) -> "OctavoError":
        """Read a failed call of either API."""
        details = _details(error)
        info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        field = retry_after_s = None
        for detail in details:
            if detail.Unpack(info):
                field = info.metadata.get("field") or field
            elif detail.Unpack(bad_request) and bad_request.field_violations:
                field = field or bad_request.field_violations[0].field
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        return cls(
            error.code(),
            error.details() or "",
            field=field,
            retry_after_s=retry_after_s,
            is_from_service=bool(details),
        )


def _details(error: grpc.RpcError) -> list[AnyProto]:
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # both kinds are a Call
    except ValueError:  # details of another status than the call ended with
        return []
    return [] if status is None else list(status.details)
