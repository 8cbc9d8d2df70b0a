"""What a client does beside its request: it sends a body, and it may leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from octavo.rpc.channels import PUBLIC_MESSAGE_BYTES
from octavo.rpc.errors import InvalidRequest

MAX_BODY_BYTES = PUBLIC_MESSAGE_BYTES


class ClientLeft(Exception):
    """The connection is closed: nobody waits for an answer."""


class WrongMediaType(Exception):
    """A web page may send forms and plain text to any address, but not JSON."""


class TooLarge(Exception):
    """A body of more than MAX_BODY_BYTES."""


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises:
        WrongMediaType: it does not say that it is JSON.
        TooLarge: it is not read to its end.
        ClientLeft: nor does it come.
        InvalidRequest: it is none.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType
    try:
        members = orjson.loads(await _read(request))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("body", f"the body is no JSON: {error}") from error
    if not isinstance(members, dict):
        raise InvalidRequest("body", "the body must be a JSON object")
    return members


async def _read(request: Request) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise TooLarge
    except ClientDisconnect:
        raise ClientLeft from None
    return bytes(body)


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """End the block with ClientLeft as soon as its client closes the connection."""
    try:
        async with asyncio.timeout(None) as patience:
            watch = asyncio.create_task(_watch(receive, patience))
            try:
                yield
            finally:
                watch.cancel()
    except TimeoutError:
        if not patience.expired():
            raise
        raise ClientLeft from None


async def _watch(receive: Receive, patience: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    patience.reschedule(asyncio.get_running_loop().time())
