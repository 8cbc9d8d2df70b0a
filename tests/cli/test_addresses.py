"""Where `octavo up` serves: where it is told to, else where it is usual, or at a free port."""

from importlib.machinery import ModuleSpec

import pytest

from octavo.cli import addresses
from octavo.cli.addresses import (
    ADDRESS,
    HTTP_ADDRESS,
    HttpUnavailable,
    choose_address,
    choose_http_address,
)
from octavo.router.config import RouterConfig


def test_only_what_nobody_asked_for_may_be_another_port() -> None:
    assert choose_address(None) == f"{ADDRESS},127.0.0.1:0"
    assert choose_address("0.0.0.0:7") == "0.0.0.0:7"
    assert choose_http_address(None) == f"{HTTP_ADDRESS},127.0.0.1:0"
    assert choose_http_address("0.0.0.0:7") == "0.0.0.0:7"
    assert choose_http_address("none") == "none"


def test_without_the_extra_there_is_no_http(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(addresses, "find_spec", find_spec)
    assert choose_http_address(None) == "none"
    assert "octavo[http]" in capsys.readouterr().err
    with pytest.raises(HttpUnavailable, match=r"octavo\[http\]"):
        choose_http_address("127.0.0.1:1")


@pytest.mark.parametrize(
    "address", ["8000", ":8000", "localhost:", "localhost:http", "a:65536", "a:1,b"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="http_address must be host:port or none"):
        RouterConfig(model="m", http_address=address)
