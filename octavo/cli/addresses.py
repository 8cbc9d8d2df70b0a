"""Where the processes of `octavo up` listen."""

import socket
from importlib.util import find_spec
from pathlib import Path

from octavo.cli.display import console
from octavo.router.config import NO_ADDRESS

HTTP_ADDRESS = "127.0.0.1:8000"


class HttpUnavailable(Exception):
    """HTTP was asked for and cannot be served; the message says why."""


def choose_http_address(asked: str | None) -> str:
    """Where HTTP is served; "none", with a note why, where it cannot be and nobody asked for it.

    Raises:
        HttpUnavailable: somebody did.
    """
    if asked == NO_ADDRESS:
        return NO_ADDRESS
    try:
        return _usable(asked or HTTP_ADDRESS)
    except HttpUnavailable as error:
        if asked is not None:
            raise
        note = f"no HTTP: {error}; --http-address HOST:PORT chooses where"
        console.print(note, style="yellow", markup=False, highlight=False)
        return NO_ADDRESS


def _usable(address: str) -> str:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise HttpUnavailable("it needs pip install 'octavo[http]'")
    try:
        check_free(address)
    except OSError as error:
        raise HttpUnavailable(f"{address}: {error.strerror}") from error
    return address


def check_free(address: str) -> None:
    """Raise OSError if somebody listens there, with whom routers might share the port."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), int(port)))


def socket_address(folder: Path, name: str) -> str:
    """Where a process listens, itself alone."""
    return f"unix:{folder / name}.sock"
