"""Failures as HTTP has them: a status code and the OpenAI API's error object.

    {"error": {"message": ..., "type": "invalid_request_error", "param": "top_p", "code": null}}

`param` is the member of the body; "Retry-After" says when to come back.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import grpc

from octavo.rpc.errors import NotFound, RequestError, Unauthenticated, Unsupported

# Clients try 409, 429 and 500 and up again by themselves. A member that is not supported is the
# caller's to leave out, so it is no 501.
STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNIMPLEMENTED: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Our fields whose members have other names.
_MEMBERS = {
    "include_stop_text": "include_stop_str_in_output",
    "parameters_json": "parameters",
    "arguments_json": "arguments",
    "chat_template_kwargs_json": "chat_template_kwargs",
    "token_ids": "prompt",
    "text": "prompt",
    "chat": "messages",
    "lora_adapter": "model",
    "tool_choice_name": "tool_choice",
}
_PREFIX = re.compile(r"^(sampling|output|chat)\.")


def status_of(error: RequestError) -> int:
    """The HTTP status code of a failure."""
    return STATUS.get(error.code, 500)


def error_object(error: RequestError) -> dict[str, Any]:
    """The body that tells of a failure."""
    status = status_of(error)
    param = _member(error.field) if error.field else None
    message = error.message
    if error.field and param:
        message = message.replace(error.field, param, 1)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": _code(error)}}


def retry_headers(error: RequestError) -> dict[str, str]:
    """When to come back, if the failure says so, in whole seconds and, for SDKs, exactly."""
    if error.retry_after_s is None:
        return {}
    return {
        "retry-after": str(max(1, math.ceil(error.retry_after_s))),
        "retry-after-ms": str(max(1, round(error.retry_after_s * 1000))),
    }


def plain_error(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """The error object of what is no failed generation: a wrong path, method or body."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _code(error: RequestError) -> str | None:
    if isinstance(error, NotFound) and error.field == "model":
        return "model_not_found"
    if isinstance(error, Unauthenticated):
        return "invalid_api_key"
    if isinstance(error, Unsupported):
        return "unsupported_parameter"
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "rate_limit_exceeded"
    return None


def _member(field: str) -> str:
    """The member of the body that a field of the request comes from."""
    path, dot, last = _PREFIX.sub("", field).rpartition(".")
    return path + dot + _MEMBERS.get(last, last).replace("content_parts[", "content[")
