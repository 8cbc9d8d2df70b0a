"""One line in the log for each request, when it has ended: ids, status, counts, times.

Never a prompt or an output: why a request was refused may quote it, so that of a caller's mistakes
only the field is told.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from octavo.rpc.errors import RequestError

Fields = dict[str, object]

_CALLERS_FAULT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


@contextmanager
def logged(logger: logging.Logger, **fields: object) -> Iterator[Fields]:
    """Log "request" with these fields, those that the block adds, its status and its time."""
    began = time.monotonic()
    status = "OK"
    try:
        yield fields
    except RequestError as error:
        status = error.code.name
        fields["field"] = error.field
        if error.code not in _CALLERS_FAULT:
            fields["reason"] = error.message
        raise
    except (asyncio.CancelledError, GeneratorExit):
        status = "CANCELLED"
        raise
    except BaseException:
        status = "INTERNAL"
        raise
    finally:
        fields |= {"status": status, "total_s": time.monotonic() - began}
        logger.info("request", extra={"fields": fields})
