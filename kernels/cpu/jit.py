"""The `jit` decorator of CPU kernels: numba without the GIL, compiled once per machine.

Compiled code is kept under `$NUMBA_CACHE_DIR` or the Octavo cache (`$OCTAVO_CACHE_DIR`, default
`~/.cache/octavo`), never beside the sources, which may be read-only. The folder's name holds a
digest of the kernels' sources: numba itself looks only at the file of the outermost function and
would run stale code after a change in another.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba import extending


def _cache_dir() -> str | None:
    """The folder for these sources' compiled code, or None if it cannot be written."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    octavo = Path(os.environ.get("OCTAVO_CACHE_DIR") or "~/.cache/octavo").expanduser()
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = (Path(chosen) if chosen else octavo / "numba") / f"octavo-{digest.hexdigest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


_CACHE_DIR = _cache_dir()
# Typed as Any: numba's own types lack some of what is used here.
_config: Any = numba.config
_njit: Any = numba.njit
_cfunc: Any = numba.cfunc


@contextmanager
def _cache() -> Iterator[None]:
    """Numba reads the folder while it decorates."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = _CACHE_DIR or before
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def jit(function: Callable[..., Any]) -> Any:
    """Compile on first use for each combination of argument types, or load from the cache.

    Without a cache every process compiles for itself.
    """
    with _cache():
        return _njit(
            cache=_CACHE_DIR is not None, nogil=True, boundscheck=False, error_model="numpy"
        )(function)


def c_function(function: Callable[..., Any], signature: Any) -> Any:
    """Compile now, or load from the cache; `.address` is where C finds it."""
    with _cache():
        return _cfunc(
            signature, cache=_CACHE_DIR is not None, boundscheck=False, error_model="numpy"
        )(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels: always becomes part of its caller."""
    return _njit(
        forceinline=True,
        boundscheck=False,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(function)


def inlined_by_type(name: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """As `inlined`, with code chosen by types: the decorated function gets those of the arguments
    of a call of `name`, and returns the function to be called. No other one is compiled, which the
    CPU may have no instructions for.
    """
    options: Any = {"forceinline": True, "boundscheck": False, "error_model": "numpy"}
    return extending.overload(name, jit_options=options)


def intrinsic(function: Callable[..., Any]) -> Any:
    """An instruction of kernels, given as LLVM code; callable inside numba code only."""
    return extending.intrinsic(function)
