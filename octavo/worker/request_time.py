"""How long a request may run, and how long its parts took."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.duration_pb2 import Duration

from octavo.rpc.errors import Expired


@asynccontextmanager
async def at_most(max_request_s: float) -> AsyncIterator[None]:
    """Bound a request, with or without a deadline of its caller's.

    Raises:
        Expired: the time is spent.
    """
    try:
        async with asyncio.timeout(max_request_s) as bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise Expired(
            f"the request ran for {max_request_s:g} s, the most this worker allows"
        ) from (error)


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(max(0, round(seconds * 1e9)))
    return message


def since(start: float) -> Duration:
    """Time that passed since `start`, a value of time.monotonic()."""
    return duration(time.monotonic() - start)
