"""The local cache: folders that appear whole or not at all, one writer at a time.

<cache>/gguf/<name>-<hash>/          one converted model
<cache>/gguf/<name>-<hash>.lock      held while it is being written
<cache>/fingerprints/<hash>          one model fingerprint
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
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


@contextmanager
def publish_folder(target: Path) -> Iterator[Path]:
    """A new folder to fill, which becomes target when the block ends well and vanishes if not.

    Files are on disk before the folder gets its name, so a crash leaves no half model under it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
        for path in [*folder.rglob("*"), folder]:
            _sync(path)
        folder.chmod(0o755)
        os.rename(folder, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
