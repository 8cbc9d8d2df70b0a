"""Whose port it is: an address is taken by listening there, never by looking first."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BACKLOG = 2048


class CannotListen(OSError):
    """Nobody can be served at an address; the message says why, and what to do."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"cannot listen at {address}: {why}; give another address, or port 0 for a free one"
        )


def open_listener(address: str, *, shares_port: bool) -> socket.socket:
    """A socket that listens at host:port, as "127.0.0.1:8000" or "[::]:8000".

    shares_port: with other processes that say so, too; the kernel spreads connections.

    Raises:
        CannotListen: somebody else listens there, or it is no address of this machine.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)  # two may bind, one may listen
    except OSError as error:
        listener.close()
        raise CannotListen(address, str(error.strerror)) from error
    return listener


@contextmanager
def first_to_share(address: str) -> Iterator[None]:
    """Within the block listeners that share host:port may open; nobody listened before it.

    Without it the first of them would join whoever shares the port already.

    Raises:
        CannotListen: somebody does listen there.
    """
    with open_listener(address, shares_port=False) as claim:
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield


def write_whole(file: Path, text: str) -> None:
    """Write all at once: a reader finds the whole file or none."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_text(text)
    draft.replace(file)
