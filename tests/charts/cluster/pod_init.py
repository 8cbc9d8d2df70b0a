"""Becomes a container: reads JSON from its argument, makes its root, execs what drops all rights.

Run in the pod's network namespace and a mount namespace of its own, as root:

    {"image": "/", "folder": "/run/cluster/pods/NAME",
     "reachable": ["/a/folder"], "mounts": [{"source", "target", "read_only"}],
     "read_only_root": true, "env": {}, "command": ["/usr/bin/setpriv", ...]}
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    root = _make_root(Path(order["image"]), Path(order["folder"]))
    for folder in order["reachable"]:
        for path in (Path(folder), *Path(folder).parents):
            inside = root / str(path).lstrip("/")
            inside.chmod(inside.stat().st_mode | 0o011)  # in the pod's own layer
    for mount in order["mounts"]:
        target = root / mount["target"].lstrip("/")
        if Path(mount["source"]).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.touch(exist_ok=True)
        _bind(mount["source"], target, read_only=mount["read_only"])
    if order["read_only_root"]:
        _mount("-o", "remount,ro,bind", str(root))
    os.chroot(root)
    os.chdir("/")
    os.execve(order["command"][0], order["command"], order["env"])


def _make_root(image: Path, folder: Path) -> Path:
    """The image's files, with changes of the pod's own on top."""
    upper, work, root = (folder / name for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        path.mkdir(parents=True, exist_ok=True)
    _mount(
        "-t", "overlay", "o", "-o", f"lowerdir={image},upperdir={upper},workdir={work}", str(root)
    )
    for name in ("proc", "dev", "sys"):
        _mount("--rbind", f"/{name}", str(root / name))
    _mount("-t", "tmpfs", "none", str(root / "dev/shm"))  # of this pod alone
    return root


def _bind(source: str, target: Path, *, read_only: bool) -> None:
    _mount("--bind", source, str(target))
    if read_only:
        _mount("-o", "remount,ro,bind", str(target))


def _mount(*arguments: str) -> None:
    subprocess.run(["/usr/bin/mount", *arguments], check=True)


if __name__ == "__main__":
    main()
