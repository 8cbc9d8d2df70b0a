"""Adapters that a running worker loads and unloads, and what it tells of them.

LoadAdapter --> path below --lora-root? --> [thread: read, check, pack] --> Adapters --> load stream
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.checkpoint.errors import CheckpointError
from octavo.engine.adapter import Adapter
from octavo.engine.adapters import Adapters
from octavo.engine.errors import AdapterConflict, TooManyAdapters, UnknownAdapter
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import Duplicate, InvalidRequest, NotFound, Precondition

MAX_PATH_BYTES = 4096


class WorkerAdapters:
    """A worker's side of its engine's adapters; used on the event loop."""

    def __init__(
        self, adapters: Adapters, root: Path | None, on_change: Callable[[], None]
    ) -> None:
        """root: where adapters may be loaded from; on_change: called once `refs` is another."""
        self._adapters = adapters
        self._root = root
        self._on_change = on_change
        self._loading = asyncio.Lock()
        self.refs = [_ref(adapter) for adapter in adapters]  # replaced, never changed

    async def load(self, name: str, path: str) -> tuple[worker_pb2.AdapterRef, bool]:
        """Load an adapter; whether it is new.

        Raises:
            Precondition: no root is set, or there is no room.
            InvalidRequest: the name, the path, or an adapter that does not fit; says what to do.
            Duplicate: other weights have that name.
        """
        folder = folder_below(self._root, path)
        async with self._loading:
            with _adapter_errors():
                known = {adapter.name: adapter for adapter in self._adapters}.get(name)
                self._adapters.check(name)
                adapter = await asyncio.to_thread(self._adapters.read, name, folder)
                adapter = self._adapters.add(adapter)
            if adapter is not known:
                self._tell()
            return _ref(adapter), adapter is not known

    def unload(self, name: str) -> None:
        """Raises NotFound."""
        with _adapter_errors():
            self._adapters.unload(name)
        self._tell()

    def _tell(self) -> None:
        self.refs = [_ref(adapter) for adapter in self._adapters]
        self._on_change()


def folder_below(root: Path | None, path: str) -> Path:
    """The folder that is meant, all links followed.

    Raises:
        Precondition: no root is set.
        InvalidRequest: it lies elsewhere, or is no path.
    """
    if root is None:
        raise Precondition(
            "lora_root", "this worker loads no adapters by LoadAdapter; start it with --lora-root"
        )
    if not path or len(path.encode()) > MAX_PATH_BYTES or not path.isprintable():
        raise InvalidRequest("path", f"path must be 1 to {MAX_PATH_BYTES} printable bytes")
    folder = (root / path).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise InvalidRequest("path", "path must lie below this worker's --lora-root")
    return folder


@contextmanager
def _adapter_errors() -> Iterator[None]:
    """Turn the engine's errors in the block into RequestErrors."""
    try:
        yield
    except CheckpointError as error:
        raise InvalidRequest("path", str(error)) from error
    except ValueError as error:
        raise InvalidRequest("name", str(error)) from error
    except TooManyAdapters as error:
        raise Precondition("max_loras", str(error)) from error
    except AdapterConflict as error:
        raise Duplicate(str(error), field="name") from error
    except UnknownAdapter as error:
        raise NotFound(str(error), field="name") from error


def _ref(adapter: Adapter) -> worker_pb2.AdapterRef:
    return worker_pb2.AdapterRef(
        name=adapter.name, fingerprint=adapter.fingerprint, rank=adapter.rank
    )
