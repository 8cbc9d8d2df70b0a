import pytest

from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.errors import InvalidRedisUrl
from octavo.registry.redis_url import RedisUrl, Topology, parse_redis_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", RedisUrl(Topology.SINGLE, (("h", 6379),))),
        (
            "rediss://u:p%40ss@h:1/3",
            RedisUrl(
                *(Topology.SINGLE, (("h", 1),)), db=3, uses_tls=True, username="u", password="p@ss"
            ),
        ),
        (
            "unix://:pw@/run/r.sock?db=2",
            RedisUrl(
                *(Topology.SINGLE, ()),
                unix_path="/run/r.sock",
                db=2,
                password="pw",
                query={"db": "2"},
            ),
        ),
        ("redis://[::1]:7", RedisUrl(Topology.SINGLE, (("::1", 7),))),
        (
            "redis+sentinel://a,b:2/main/4",
            RedisUrl(Topology.SENTINEL, (("a", 26379), ("b", 2)), service="main", db=4),
        ),
        (
            "rediss+cluster://a:1,b:2",
            RedisUrl(Topology.CLUSTER, (("a", 1), ("b", 2)), uses_tls=True),
        ),
    ],
)
def test_every_kind_of_url_is_read(url: str, expected: RedisUrl) -> None:
    assert parse_redis_url(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "unknown scheme 'http'"),
        ("redis://u:secret@", "names no host"),
        ("redis://u:secret@h:port", "not a host and port"),
        ("redis://u:secret@h/name", "not a database number"),
        ("redis://u:secret@h/0/1", "not a database number"),
        ("redis://u:secret@h?socket_timeout=9", "unknown option 'socket_timeout'"),
        ("redis+sentinel://u:secret@h", "needs the service's name"),
        ("redis+cluster://u:secret@h/1", "only database 0"),
        ("unix://", "needs a path"),
        ("redis://u:secret@[h", "not a URL"),
    ],
)
def test_a_wrong_url_is_refused_by_reason_and_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(InvalidRedisUrl) as caught:
        RedisSettings(url)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_do_not_show_their_password() -> None:
    settings = RedisSettings("redis://u:secret@h", password="secret")
    assert "secret" not in repr(settings)
    assert "secret" not in repr(parse_redis_url(settings.url))


def test_certificates_without_tls_are_refused() -> None:
    with pytest.raises(InvalidRedisUrl, match="not rediss"):
        open_redis(RedisSettings("redis://h", ca_file="ca.pem"), BACKGROUND)
