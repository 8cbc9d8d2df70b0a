"""A fresh redis-server and an open connection for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from octavo.registry.connection import BACKGROUND, RedisConnection, open_redis
from registry.redis_server import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisConnection]:
    connection = open_redis(server.settings, BACKGROUND)
    yield connection
    await connection.aclose()
