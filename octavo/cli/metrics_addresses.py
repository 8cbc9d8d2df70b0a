"""Where the processes of `octavo up` show their metrics, and a file that tells Prometheus."""

import json
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from octavo.cli.child import Child
from octavo.rpc.exposure import NO_ADDRESS

LOOPBACK = "127.0.0.1"
TARGETS = "prometheus-targets.json"


def give_metrics_addresses(children: list[Child], asked: str | None, num_before: int = 0) -> None:
    """Tell each process its own.

    asked: host:port of the first, the others get the ports behind it; "none"; None: free ports.
    num_before: processes that have one already.
    """
    if asked == NO_ADDRESS:
        addresses = [NO_ADDRESS] * len(children)
    elif asked is None:
        addresses = [f"{LOOPBACK}:{port}" for port in _free_ports(len(children))]
    else:
        host, _, first = asked.rpartition(":")
        addresses = [
            f"{host}:{int(first) + num_before + number}" for number in range(len(children))
        ]
    for child, address in zip(children, addresses, strict=True):
        child.metrics_address = address
        child.arguments += ["--metrics-address", address]


def write_targets(folder: Path, children: Iterable[Child]) -> None:
    """A file for Prometheus' file_sd_configs; none where there are no metrics."""
    targets = [
        {"targets": [child.metrics_address], "labels": {"process": child.name}}
        for child in children
        if child.metrics_address != NO_ADDRESS
    ]
    path = folder / TARGETS
    path.unlink(missing_ok=True)  # it may tell of an earlier service
    if targets:
        path.write_text(json.dumps(targets, indent=1) + "\n")


def _free_ports(count: int) -> list[int]:
    """Different ones, that nobody listened at a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
