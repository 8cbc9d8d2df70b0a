"""Names a model by its content, so that workers and routers can tell that they mean the same one.

blake2b over config.json and every byte of every weight file. That is read once per file state: the
result is kept in the local cache under the files' paths, sizes and modification times.
"""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from octavo.checkpoint.cache import cache_dir, publish_text
from octavo.checkpoint.config import CONFIG
from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.weights import weight_files

FINGERPRINT_BYTES = 16

logger = logging.getLogger(__name__)


def model_fingerprint(path: Path) -> str:
    """32 hex digits; equal for equal content, wherever the folder lies."""
    files = [path / CONFIG, *weight_files(path)]
    if not files[0].exists():
        raise CheckpointError(f"{files[0]} does not exist")
    cached = cache_dir() / "fingerprints" / _state(files)
    with suppress(OSError):  # not there, or not ours to read: compute it
        return cached.read_text(encoding="utf-8")
    fingerprint = _digest(files)
    try:
        publish_text(cached, fingerprint)
    except OSError as error:  # a read-only cache costs time on every start, nothing else
        logger.warning("the model fingerprint is not cached: %s", error)
    return fingerprint


def _state(files: list[Path]) -> str:
    """Changes whenever a file is replaced, grows or is written to."""
    state = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for file in files:
        status = file.stat()
        state.update(f"{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return state.hexdigest()


def _digest(files: list[Path]) -> str:
    whole = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for file in files:
        with file.open("rb") as stream:
            part = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=32))
        whole.update(file.stat().st_size.to_bytes(8, "little") + part.digest())
    return whole.hexdigest()
