"""The local cache: folders that appear whole or not at all, one writer at a time.

<cache>/gguf/<name>-<hash>/          one converted model
<cache>/gguf/<name>-<hash>.lock      held while it is being written
<cache>/fingerprints/<hash>          one model fingerprint
<cache>/demo/                        the quick start's GGUF file
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """OCTAVO_CACHE_DIR, or ~/.cache/octavo."""
    configured = os.environ.get("OCTAVO_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "octavo"


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Hold the lock file beside target; the kernel drops it when the process dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return target, a file or folder, which build writes if it is not there yet.

    build gets a path in a private folder. What it wrote is on disk before it is renamed, so a crash
    leaves nothing under target's name; of two processes one builds and the other waits for it.
    """
    if target.exists():
        return target
    with exclusive(target):
        for leftover in target.parent.glob(f".{target.name}-*"):
            shutil.rmtree(leftover)  # of a process that died: the lock is ours
        if not target.exists():
            workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                build(workplace / target.name)
                for path in [workplace / target.name, *(workplace / target.name).rglob("*")]:
                    _sync(path)
                os.rename(workplace / target.name, target)
                _sync(target.parent)
            finally:
                shutil.rmtree(workplace)
    return target


def publish_text(target: Path, text: str) -> None:
    """Write a small file that is never seen half written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
