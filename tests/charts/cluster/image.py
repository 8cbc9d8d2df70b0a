"""What an image is here: files to run on, its environment and its entry point.

OCTAVO_IMAGES names the folder in which deploy/image/rehearse.py has made images. Without it, this
checkout and its interpreter stand in for them.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
TARGETS = {"octavo-router": "router", "octavo-worker-cpu": "worker-cpu"}


@dataclass(frozen=True)
class Image:
    """`root` is never changed: pods write to a layer of their own."""

    root: Path
    env: dict[str, str]
    entrypoint: list[str]
    # Folders that any user of a pod may enter, whatever is around them here.
    reachable: tuple[str, ...] = ()


def image_of(name: str) -> Image:
    """The image of a container's `image`.

    Raises:
        KeyError: no such image is known.
    """
    repository = name.rpartition("/")[2].partition(":")[0]
    folder = os.environ.get("OCTAVO_IMAGES")
    if repository == "redis":
        return Image(Path("/"), {"PATH": os.environ["PATH"]}, [])
    if folder:
        root = Path(folder) / TARGETS[repository]
        settings = json.loads((root / "image.json").read_text())
        return Image(root, settings["env"], settings["entrypoint"])
    assert repository in TARGETS, name
    programs = Path(sys.executable).parent  # probes ask for `octavo`
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": "/tmp",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    entrypoint = [sys.executable, "-m", "octavo.cli.app"]
    reachable = (str(CHECKOUT), sys.prefix, sys.base_prefix)
    return Image(Path("/"), env, entrypoint, reachable)
