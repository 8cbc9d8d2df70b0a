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

    Every address record of such a name is a worker (a headless service in Kubernetes).
    """
    known = [_Name(part) for name in names for part in name.split(",") if part]
    while True:
        for name in known:
            await name.resolve()
        workers.want("command line", frozenset().union(*(name.addresses for name in known)))
        if not any(name.can_change for name in known):
            return
        await asyncio.sleep(interval_s)


class _Name:
    """A name and what it means; one that cannot be resolved keeps the addresses it had."""

    def __init__(self, name: str) -> None:
        self.can_change = name.startswith(DNS_PREFIX)
        self.addresses = frozenset[str]() if self.can_change else frozenset({name})
        self._name = name
        self._fails = False

    async def resolve(self) -> None:
        if not self.can_change:
            return
        host, _, port = self._name.removeprefix(DNS_PREFIX).rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            records = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if not self._fails:  # once, not every interval
                logger.warning("cannot resolve %s, trying on: %s", self._name, error)
            self._fails = True
            return
        if self._fails:
            logger.info("%s can be resolved", self._name)
        self._fails = False
        self.addresses = frozenset(_address(record[4]) for record in records)


def _address(socket_address: tuple[Any, ...]) -> str:
    host, port = socket_address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
