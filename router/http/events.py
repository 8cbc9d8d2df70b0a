"""Server-sent events: bytes of one response, whose headers go out with the first of them.

HTTP/1.1 200 ... data: {...}\n\n data: {...}\n\n data: [DONE]\n\n
"""

from collections.abc import Iterable

import orjson
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers events would end streaming
]


def event(content: object) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def events(contents: Iterable[object]) -> bytes:
    return b"".join([event(content) for content in contents])


class EventStream:
    """Writes events; until the first one is there, the request may still end with an error code."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.has_begun = False
        self._send = send
        self._headers = [*HEADERS, (b"x-request-id", request_id.encode())]

    async def write(self, data: bytes) -> None:
        """Send events; waits while the client takes nothing."""
        if not self.has_begun:
            self.has_begun = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
