"""Turns the addresses of the command line into ones that can be connected to."""

import asyncio
import logging
import socket
from typing import Any

from octavo.router.workers import Workers

logger = logging.getLogger(__name__)

DNS_PREFIX = "dns:///"


async def watch_names(names: tuple[str, ...], workers: Workers, interval_s: float) -> None:
    """Keep `workers` wanting what the names mean; those with dns:/// are resolved again and again.

    Every address record of such a name is a worker (a headless service in Kubernetes). A name that
    cannot be resolved keeps the addresses it had.
    """
    names = tuple(part for name in names for part in name.split(",") if part)
    known: dict[str, frozenset[str]] = {}
    while True:
        for name in names:
            known[name] = await _resolve(name, known.get(name, frozenset()))
        workers.want("command line", frozenset().union(*known.values()))
        if not any(name.startswith(DNS_PREFIX) for name in names):
            return
        await asyncio.sleep(interval_s)


async def _resolve(name: str, before: frozenset[str]) -> frozenset[str]:
    if not name.startswith(DNS_PREFIX):
        return frozenset({name})
    host, _, port = name.removeprefix(DNS_PREFIX).rpartition(":")
    try:
        records = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.warning("cannot resolve %s: %s", name, error)
        return before
    return frozenset(_address(record[4]) for record in records)


def _address(socket_address: tuple[Any, ...]) -> str:
    host, port = socket_address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
