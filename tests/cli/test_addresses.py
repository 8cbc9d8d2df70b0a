"""Where `octavo up` serves HTTP: where it is told to, else where it is usual, if that can be."""

import socket
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from octavo.cli import addresses
from octavo.cli.addresses import HttpUnavailable, choose_http_address
from octavo.router.config import RouterConfig
from service import free_address


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_a_free_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    address = free_address()
    assert choose_http_address(address) == address
    monkeypatch.setattr(addresses, "HTTP_ADDRESS", address)
    assert choose_http_address(None) == address


def test_a_taken_address_is_an_error_only_where_it_was_asked_for(
    taken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(addresses, "HTTP_ADDRESS", taken)
    assert choose_http_address(None) == "none"
    assert f"no HTTP: {taken}" in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(HttpUnavailable, match=taken):
        choose_http_address(taken)
    assert choose_http_address("none") == "none"


def test_without_the_extra_there_is_no_http(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(addresses, "find_spec", find_spec)
    assert choose_http_address(None) == "none"
    assert "octavo[http]" in capsys.readouterr().err.replace("\n", "")
    with pytest.raises(HttpUnavailable, match=r"octavo\[http\]"):
        choose_http_address(free_address())


@pytest.mark.parametrize("address", ["8000", ":8000", "localhost:", "localhost:http", "a:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="http_address must be host:port or none"):
        RouterConfig(model="m", http_address=address)
