"""The `jit` decorator of CPU kernels: numba without the GIL, compiled once per machine.

Compiled code is kept under `$NUMBA_CACHE_DIR` or the Octavo cache (`$OCTAVO_CACHE_DIR`, default
`~/.cache/octavo`), never beside the sources, which may be read-only. The folder's name holds a
digest of the kernels' sources: numba itself looks only at the file of the outermost function and
would run stale code after a change in another.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config


def _cache_dir() -> str:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    octavo = Path(os.environ.get("OCTAVO_CACHE_DIR") or "~/.cache/octavo").expanduser()
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return str((Path(chosen) if chosen else octavo / "numba") / f"octavo-{digest.hexdigest()}")


_CACHE_DIR = _cache_dir()


def jit(function: Callable[..., Any]) -> Any:
    """Compile on first use for each combination of argument types, or load from the cache."""
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    before = config.CACHE_DIR
    config.CACHE_DIR = _CACHE_DIR
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to write: every process compiles for itself
        return numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels: always becomes part of its caller."""
    return numba.njit(forceinline=True, boundscheck=False, error_model="numpy")(function)
