"""Sockets have addresses even where the folder for temporary files is deep, as on macOS."""

import tempfile
from pathlib import Path

import pytest

from octavo.cli.up_config import UpConfig
from octavo.registry.embedded import EmbeddedRedis
from octavo.registry.redis_url import parse_redis_url
from octavo.socket_folder import make_socket_folder


@pytest.fixture
def deep_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go: too deep for a socket."""
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def test_an_embedded_redis_answers(deep_folder: Path) -> None:
    async with EmbeddedRedis() as redis:
        path = Path(parse_redis_url(redis.url).unix_path or "")
        assert path.is_socket()
    assert not path.parent.exists() and not list(deep_folder.iterdir())


def test_a_folder_for_oneself_is_made_in_the_usual_place_if_that_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.chdir(tmp_path)
    folder = make_socket_folder("octavo-")
    assert folder.parent == Path("/tmp") and folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_a_run_dir_that_is_too_deep_is_named(deep_folder: Path) -> None:
    with pytest.raises(ValueError, match="run_dir must be at most 87 bytes long"):
        UpConfig(run_dir=deep_folder)
