"""Asks every HTTP request for an API key, but for /health, by which load balancers look."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.router.http.endpoint import error_response
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.errors import Unauthenticated

FREE = "/health"


class KeyGate:
    """Lets a request through to `app` if it has a key of the ring."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] != FREE:
                self._keys.check(Headers(scope=scope).get("authorization"))
        except Unauthenticated as error:
            await error_response(error, {"www-authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)
