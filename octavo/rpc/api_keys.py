"""Keys by which clients are let in: a file of one key a line, read again when it changes.

authorization: Bearer KEY      gRPC metadata, or an HTTP header
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc_status import rpc_status

from octavo.rpc.errors import Unauthenticated, status_of

logger = logging.getLogger(__name__)

MIN_KEY_BYTES = 16
LOOK_INTERVAL_S = 1.0  # between two looks whether the file changed
_SCHEME = "bearer "
_HEALTH = "/grpc.health.v1.Health/"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


@dataclass(slots=True)
class KeyRing:
    """The keys of a file; empty lines and lines that begin with # do not count.

    Raises:
        ValueError: the file cannot be read, holds no key, or one that is too short.
    """

    path: Path
    _digests: list[bytes] = field(default_factory=list)
    _state: tuple[int, int] = (0, 0)
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._read()

    def check(self, authorization: str | None) -> None:
        """Raise Unauthenticated unless this is a header with one of the keys.

        Takes the same time whichever key it is, and however much of one is right.
        """
        self._look()
        if authorization is None:
            raise Unauthenticated("an API key is needed: send authorization: Bearer KEY")
        given = authorization if authorization[:7].lower() == _SCHEME else ""
        digest = _digest(given[len(_SCHEME) :].strip())
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        if not is_known:
            raise Unauthenticated("this API key is not known; send authorization: Bearer KEY")

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_INTERVAL_S:
            return
        self._looked = now
        try:
            if self._stat() != self._state:
                self._read()
                logger.info("read %d API keys of %s", len(self._digests), self.path)
        except (OSError, ValueError) as error:
            logger.error("API keys kept as they were: %s", error)

    def _read(self) -> None:
        try:
            state, text = self._stat(), self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"api_key_file {self.path} cannot be read: {error}") from error
        lines = (line.strip() for line in text.splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError(f"api_key_file {self.path} holds no key")
        if min(len(key.encode()) for key in keys) < MIN_KEY_BYTES:
            raise ValueError(f"api_key_file {self.path}: a key has {MIN_KEY_BYTES} bytes or more")
        self._digests, self._state = [_digest(key) for key in keys], state

    def _stat(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_ino


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Asks every call for a key, but for those that look after health."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        if handler_call_details.method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        try:
            self._keys.check(_authorization(handler_call_details.invocation_metadata))
        except Unauthenticated as error:
            return _refusal(error)
        return await continuation(handler_call_details)


def _refusal(error: Unauthenticated) -> "Handler":
    """What answers a call of any kind with the error; nothing of its request is read."""

    async def refuse(requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort_with_status(rpc_status.to_status(status_of(error)))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
