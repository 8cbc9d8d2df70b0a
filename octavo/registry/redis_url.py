"""Reads a Redis URL of any kind into one plain value.

redis://user:password@host:6379/0        rediss:// with TLS
unix:///run/redis.sock?db=0
redis+sentinel://host:26379,host2:26379/service/0
redis+cluster://host:7000,host2:7001     rediss+sentinel://, rediss+cluster:// with TLS
"""

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from octavo.registry.errors import InvalidRedisUrl


class Topology(Enum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "unix": (Topology.SINGLE, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}
_DEFAULT_PORTS = {Topology.SINGLE: 6379, Topology.SENTINEL: 26379, Topology.CLUSTER: 6379}
_QUERY_FIELDS = (
    "db",
    "sentinel_username",
    "sentinel_password",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    topology: Topology
    nodes: tuple[tuple[str, int], ...]  # empty for a unix socket
    unix_path: str = ""
    service: str = ""  # the name that Sentinel knows the master by
    db: int = 0
    uses_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    query: dict[str, str] = field(default_factory=dict, repr=False)


def parse_redis_url(url: str) -> RedisUrl:
    """Raises InvalidRedisUrl, whose message names what is wrong and holds no password."""
    parts = _split(url)
    topology, uses_tls = _SCHEMES[parts.scheme]
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(query) - set(_QUERY_FIELDS))
    if unknown:
        raise InvalidRedisUrl(f"unknown option {unknown[0]!r}; known: {', '.join(_QUERY_FIELDS)}")
    is_unix = parts.scheme == "unix"
    steps = [] if is_unix else [unquote(step) for step in parts.path.split("/") if step]
    service = ""
    if topology is Topology.SENTINEL:
        if not steps:
            raise InvalidRedisUrl("a sentinel URL needs the service's name as its path")
        service = steps.pop(0)
    if is_unix and not parts.path:
        raise InvalidRedisUrl("a unix URL needs a path: unix:///run/redis.sock")
    return RedisUrl(
        topology=topology,
        nodes=() if is_unix else _nodes(hosts, _DEFAULT_PORTS[topology]),
        unix_path=unquote(parts.path) if is_unix else "",
        service=service,
        db=_db(steps, query, topology),
        uses_tls=uses_tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        query=query,
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRedisUrl("not a URL") from error
    if parts.scheme not in _SCHEMES:
        raise InvalidRedisUrl(f"unknown scheme {parts.scheme!r}; known: {', '.join(_SCHEMES)}")
    return parts


def _nodes(hosts: str, default_port: int) -> tuple[tuple[str, int], ...]:
    nodes = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"//{host}")
            nodes.append((parts.hostname or "", parts.port or default_port))
        except ValueError as error:
            raise InvalidRedisUrl(f"not a host and port: {host!r}") from error
    if any(not name for name, _ in nodes):
        raise InvalidRedisUrl("the URL names no host")
    return tuple(nodes)


def _db(steps: list[str], query: dict[str, str], topology: Topology) -> int:
    text = query.get("db") or (steps[0] if steps else "0")
    if len(steps) > 1 or not text.isascii() or not text.isdigit():
        raise InvalidRedisUrl(f"not a database number: {'/'.join(steps) or text!r}")
    db = int(text)
    if db and topology is Topology.CLUSTER:
        raise InvalidRedisUrl(f"a cluster has only database 0, not {db}")
    return db
