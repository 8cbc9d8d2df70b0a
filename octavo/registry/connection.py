"""Opens Redis, whatever its kind, and runs commands and scripts on it.

    RedisSettings --open_redis--> RedisConnection --EVALSHA (EVAL when unknown)--> Redis

Nothing is retried here: a request has no time for it, and background tasks have their own pace. A
call that is cancelled closes its socket, so that its late reply can never be taken for another's.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from octavo.histogram import CALL_S, Histogram
from octavo.registry.errors import InvalidRedisUrl, LeaseGone, RedisRefused, RedisUnavailable
from octavo.registry.redis_url import RedisUrl, Topology, parse_redis_url
from octavo.registry.script import Script

Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float
    call_s: float  # everything: finding the master, connecting, asking
    socket_s: float  # one read of a sentinel or cluster node, so that the next one gets its turn


# A caller of the index waits 20 ms at most (see index.py). The call it leaves behind gets a little
# longer, so that a late answer is no reason to open a connection again.
REQUEST_PATH = Timeouts(connect_s=0.1, call_s=0.3, socket_s=0.1)
BACKGROUND = Timeouts(connect_s=0.5, call_s=2.0, socket_s=0.5)

MAX_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where Redis is and how to be let in; options here win over those in the URL."""

    url: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        parse_redis_url(self.url)


class Client(Protocol):
    async def execute_command(self, *args: Any, **options: Any) -> Any: ...

    async def aclose(self) -> None: ...


class RedisConnection:
    """A pool of connections to one Redis; every error that leaves it is a RegistryError."""

    def __init__(self, client: Client, call_timeout_s: float, sentinel: Sentinel | None) -> None:
        self.call_s = Histogram(CALL_S)  # calls that ended, however
        self._client = client
        self._call_timeout_s = call_timeout_s
        self._sentinel = sentinel

    async def command(self, *args: Argument) -> object:
        async with self._call(str(args[0])):
            return await self._execute(*args)

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Argument]) -> object:
        async with self._call(script.name):
            try:
                return await self._execute("EVALSHA", script.sha1, len(keys), *keys, *args)
            except NoScriptError:  # a new, restarted or flushed server
                return await self._execute("EVAL", script.text, len(keys), *keys, *args)

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()

    @asynccontextmanager
    async def _call(self, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._call_timeout_s):
                yield
        except (TimeoutError, OSError) as error:
            raise RedisUnavailable(f"{name}: {error or 'timed out'}") from error
        finally:
            self.call_s.add(time.monotonic() - began)

    async def _execute(self, *args: Argument) -> object:
        try:
            reply: object = await self._client.execute_command(*args)
        except NoScriptError:
            raise
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise RedisUnavailable(str(error)) from error
        except ResponseError as error:
            if str(error).startswith("GONE"):
                raise LeaseGone(str(error)) from error
            raise RedisRefused(str(error)) from error
        except (RedisError, RedisClusterException, ValueError) as error:
            raise RedisUnavailable(f"{type(error).__name__}: {error}") from error
        return reply


def open_redis(settings: RedisSettings, timeouts: Timeouts) -> RedisConnection:
    """Make a client; the first command connects it."""
    url = parse_redis_url(settings.url)
    options = _socket_options(timeouts, has_others=url.topology is Topology.CLUSTER)
    options["username"] = settings.username or url.username
    options["password"] = settings.password or url.password
    tls = _tls_options(settings, url)
    match url.topology:
        case Topology.SINGLE:
            return _open_single(url, timeouts, options | tls)
        case Topology.SENTINEL:
            return _open_sentinel(url, timeouts, options, tls)
        case Topology.CLUSTER:
            return _open_cluster(url, timeouts, options | tls)


def _open_single(url: RedisUrl, timeouts: Timeouts, options: dict[str, Any]) -> RedisConnection:
    options["db"] = url.db
    if url.unix_path:
        options |= {"connection_class": UnixDomainSocketConnection, "path": url.unix_path}
    else:
        options["host"], options["port"] = url.nodes[0]
        options["connection_class"] = SSLConnection if url.uses_tls else Connection
    pool = ConnectionPool(max_connections=MAX_CONNECTIONS, **options)
    return RedisConnection(Redis.from_pool(pool), timeouts.call_s, None)


def _open_sentinel(
    url: RedisUrl, timeouts: Timeouts, options: dict[str, Any], tls: dict[str, Any]
) -> RedisConnection:
    ssl: dict[str, Any] = {"ssl": True, **tls} if url.uses_tls else {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        list(url.nodes),
        sentinel_kwargs=_socket_options(timeouts, has_others=True)
        | ssl
        | {
            "username": url.query.get("sentinel_username"),
            "password": url.query.get("sentinel_password"),
        },
    )
    master = sentinel.master_for(
        url.service, max_connections=MAX_CONNECTIONS, db=url.db, **options, **ssl
    )
    return RedisConnection(master, timeouts.call_s, sentinel)


def _open_cluster(url: RedisUrl, timeouts: Timeouts, options: dict[str, Any]) -> RedisConnection:
    cluster = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in url.nodes],
        max_connections=MAX_CONNECTIONS,
        require_full_coverage=False,  # one model needs one slot
        ssl=url.uses_tls,
        **options,
    )
    return RedisConnection(cluster, timeouts.call_s, None)


def _socket_options(timeouts: Timeouts, *, has_others: bool) -> dict[str, Any]:
    """`has_others`: a node that hangs can be replaced by another one within the call.

    Elsewhere the call's own limit is enough, and redis-py must not time its writes: it does so with
    `asyncio.wait_for`, which costs a task per command and, in Python 3.11, loses cancellations.
    """
    return {
        "socket_connect_timeout": timeouts.connect_s,
        "socket_timeout": timeouts.socket_s if has_others else None,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # needs no handshake round trip
        "driver_info": None,  # nor does naming ourselves
    }


def _tls_options(settings: RedisSettings, url: RedisUrl) -> dict[str, Any]:
    files = {
        "ssl_ca_certs": settings.ca_file or url.query.get("ssl_ca_certs"),
        "ssl_certfile": settings.cert_file or url.query.get("ssl_certfile"),
        "ssl_keyfile": settings.key_file or url.query.get("ssl_keyfile"),
    }
    options: dict[str, Any] = {name: path for name, path in files.items() if path}
    if "ssl_check_hostname" in url.query:
        options["ssl_check_hostname"] = url.query["ssl_check_hostname"].lower() != "false"
    if options and not url.uses_tls:
        raise InvalidRedisUrl("certificates are given, but the URL's scheme is not rediss")
    return options
