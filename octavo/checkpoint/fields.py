"""Reads the fields of a JSON file strictly: a wrong type is refused by name, never guessed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from octavo.checkpoint.errors import CheckpointError

_REQUIRED = object()


class Fields:
    """A JSON object whose getters check types; `where` names it in errors.

    A field that is null counts as absent, unless the caller asks with `has`.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, name: str) -> bool:
        """Whether the field is written at all, null included."""
        return name in self.values

    def integer(self, name: str, default: object = _REQUIRED) -> int:
        return cast(int, self._get(name, (int,), default))

    def number(self, name: str, default: object = _REQUIRED) -> float:
        return float(cast(float, self._get(name, (int, float), default)))

    def boolean(self, name: str, default: object = _REQUIRED) -> bool:
        return cast(bool, self._get(name, (bool,), default))

    def string(self, name: str, default: object = _REQUIRED) -> str:
        return cast(str, self._get(name, (str,), default))

    def strings(self, name: str) -> list[str] | None:
        value = self._get(name, (list,), None)
        if value is not None and not all(
            isinstance(item, str) for item in cast(list[object], value)
        ):
            raise CheckpointError(f"{self.where}: {name} must be a list of strings, got {value!r}")
        return cast(list[str] | None, value)

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """An id or a list of ids, or None where the field is absent or null."""
        value = self._get(name, (int, list), None)
        if value is None:
            return None
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise CheckpointError(f"{self.where}: {name} must hold token ids, got {value!r}")
        return tuple(ids)

    def nested(self, name: str) -> "Fields | None":
        value = self._get(name, (dict,), None)
        if value is None:
            return None
        return Fields(cast(dict[str, object], value), f"{self.where}: {name}")

    def _get(self, name: str, types: tuple[type, ...], default: object) -> object:
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise CheckpointError(f"{self.where}: the field {name} is missing")
            return default
        # JSON's true is no number, although Python's is.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise CheckpointError(f"{self.where}: {name} must be {expected}, got {value!r}")
        return value


def read_fields(path: Path) -> Fields:
    """The JSON object in the file; raises CheckpointError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return Fields(values, str(path))
