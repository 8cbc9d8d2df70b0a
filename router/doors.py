"""Where a router listens: the first of the addresses it is given that can be had.

"127.0.0.1:50051,127.0.0.1:0"  -->  127.0.0.1:50051, or a free port of the same host

Routers that share a port: the first one, which has an address_file, sees to it that nobody else is
there, and writes where it listens; the others are told to listen there, too.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from octavo.router.config import RouterConfig, split_addresses
from octavo.rpc.listening import CannotListen, first_to_share, write_whole

Door = TypeVar("Door")


def open_door(
    config: RouterConfig, addresses: str, listen: Callable[[str], Door]
) -> tuple[str, Door]:
    """Listen at the first address where that is possible.

    Raises:
        CannotListen: at the last one neither.
    """
    *others, last = split_addresses(addresses)
    for address in others:
        try:
            with _claim(config, address):
                return address, listen(address)
        except CannotListen:
            continue
    with _claim(config, last):
        return last, listen(last)


def _claim(config: RouterConfig, address: str) -> AbstractContextManager[None]:
    is_first = config.shares_port and config.address_file is not None
    is_fresh = address.endswith(":0")  # the kernel gives a port that nobody has
    return first_to_share(address) if is_first and not is_fresh else nullcontext()


def with_port(address: str, port: int) -> str:
    """The address with the port that was got; a unix socket has none."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def write_addresses(file: Path, grpc: str, http: str | None) -> None:
    """Say where this router listens."""
    write_whole(file, json.dumps({"grpc": grpc, "http": http}) + "\n")
