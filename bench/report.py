"""What every benchmark's table names: the machine; and raw rows as a file."""

import json
import os
import platform
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def machine() -> str:
    """Processor and number of cores, for the title of a table."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def write_json(path: Path, title: str, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": title, "rows": rows}, indent=1) + "\n")
    print(f"figures: {path}")
