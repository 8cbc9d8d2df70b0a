"""The adapters an engine has loaded, by name. Sequences hold theirs themselves, so unloading one
only ends its choice: those that run go on, and its memory goes with the last of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from octavo.checkpoint.adapter_config import check_adapter_name
from octavo.checkpoint.errors import UnsupportedAdapter
from octavo.engine.adapter import Adapter
from octavo.engine.errors import AdapterConflict, TooManyAdapters, UnknownAdapter

Load = Callable[[str, Path], Adapter]


def no_adapter(name: str, path: Path) -> Adapter:
    """Of an engine whose model takes none."""
    raise UnsupportedAdapter(f"adapter {name!r} at {path}: this engine's model takes none")


class Adapters:
    """Used by one thread: the event loop's, or `LLM`'s. The engine thread never looks here."""

    def __init__(self, read: Load, max_loras: int) -> None:
        """read: makes an adapter of a name and a folder; any thread may call it."""
        self.read = read
        self.max_loras = max_loras
        self._by_name: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._by_name.values())

    def load(self, name: str, path: Path) -> Adapter:
        """Read an adapter and add it; one of the same name and weights is kept.

        Raises:
            CheckpointError: it cannot be used; the message says why.
            AdapterConflict, TooManyAdapters: as `add`.
            ValueError: the name.
        """
        self.check(name)
        return self.add(self.read(name, path))

    def check(self, name: str) -> None:
        """Whether an adapter might be called so, before it is read.

        Raises:
            ValueError: it must not.
            TooManyAdapters: there is no room for one more.
        """
        check_adapter_name(name)
        if name not in self._by_name and len(self._by_name) >= self.max_loras:
            raise TooManyAdapters(
                f"{len(self._by_name)} adapters are loaded, max_loras is {self.max_loras}; "
                "unload one or raise --max-loras"
            )

    def add(self, adapter: Adapter) -> Adapter:
        """Let requests choose it; returns the one that is loaded from now on.

        Raises:
            AdapterConflict: other weights have that name.
            TooManyAdapters: max_loras are loaded.
        """
        known = self._by_name.get(adapter.name)
        if known is None:
            self.check(adapter.name)
            known = self._by_name[adapter.name] = adapter
        elif known.fingerprint != adapter.fingerprint:
            raise AdapterConflict(
                f"adapter {adapter.name!r} is loaded with other weights; unload it first"
            )
        return known

    def unload(self, name: str) -> Adapter:
        """Raises UnknownAdapter."""
        adapter = self.named(name)
        del self._by_name[name]
        return adapter

    def named(self, name: str) -> Adapter:
        """Raises UnknownAdapter, saying which there are."""
        adapter = self._by_name.get(name)
        if adapter is None:
            names = ", ".join(map(repr, self._by_name)) or "none"
            raise UnknownAdapter(f"adapter {name[:128]!r} is not loaded; loaded: {names}")
        return adapter
