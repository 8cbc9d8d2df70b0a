"""Where the processes of `octavo up` listen.

The first router takes its addresses, or a free port where nobody said which; a file tells them.
"""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import typer

from octavo.router.config import NO_ADDRESS

ADDRESS = "127.0.0.1:50051"
HTTP_ADDRESS = "127.0.0.1:8000"
ADDRESS_FILE = "addresses.json"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients find the service."""

    grpc: str
    http: str | None

    @classmethod
    def read(cls, file: Path) -> "Addresses":
        return cls(**json.loads(file.read_text()))


class HttpUnavailable(Exception):
    """HTTP was asked for and cannot be served; the message says why."""


def choose_address(asked: str | None) -> str:
    """What the first router is to listen at."""
    return asked or or_free_port(ADDRESS)


def choose_http_address(asked: str | None) -> str:
    """The same for HTTP; "none", with a note why, where it cannot be served and nobody asked.

    Raises:
        HttpUnavailable: somebody did.
    """
    if asked == NO_ADDRESS:
        return NO_ADDRESS
    if find_spec("starlette") is not None and find_spec("uvicorn") is not None:
        return asked or or_free_port(HTTP_ADDRESS)
    why = "it needs pip install 'octavo[http]'"
    if asked is not None:
        raise HttpUnavailable(f"no HTTP at {asked}: {why}")
    typer.secho(f"no HTTP: {why}", fg="yellow", err=True)
    return NO_ADDRESS


def or_free_port(address: str) -> str:
    """The address, or where that is taken any other port of its host."""
    return f"{address},{address.rpartition(':')[0]}:0"


def socket_address(folder: Path, name: str) -> str:
    """Where a process listens, itself alone."""
    return f"unix:{folder / name}.sock"
