"""Where the processes of `octavo up` show their metrics, and a file that tells Prometheus.

Each takes its own port and tells which in a file of its name.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from octavo.cli.child import Child
from octavo.rpc.exposure import NO_ADDRESS

FREE_PORTS = "127.0.0.1:0"
TARGETS = "prometheus-targets.json"
SUFFIX = ".metrics-address"


def metrics_arguments(asked: str | None, number: int, file: Path) -> list[str]:
    """What a process is told of its port, and of the file that is to tell of it.

    asked: host:port of number 0, the others get the ports behind it; "none"; None: free ports.
    """
    if asked == NO_ADDRESS:
        return ["--metrics-address", NO_ADDRESS]
    host, _, first = (asked or FREE_PORTS).rpartition(":")
    port = int(first) + number if int(first) else 0
    return ["--metrics-address", f"{host}:{port}", "--metrics-address-file", str(file)]


def read_metrics_addresses(folder: Path, children: Iterable[Child]) -> None:
    """Note what each process has told, and write it for Prometheus' file_sd_configs, if any did."""
    targets = []
    for child in children:
        file = folder / f"{child.name}{SUFFIX}"
        if file.exists():
            child.metrics_address = file.read_text()
            labels = {"process": child.name}
            targets.append({"targets": [child.metrics_address], "labels": labels})
    if targets:
        (folder / TARGETS).write_text(json.dumps(targets, indent=1) + "\n")
