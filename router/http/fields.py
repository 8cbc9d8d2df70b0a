"""Members of a JSON request, each taken once by its type; what nobody took is refused by name.

A member of null is as good as none, as in the OpenAI API.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from octavo.rpc.errors import InvalidRequest

Value = TypeVar("Value")


class Fields:
    """The members of one JSON object."""

    def __init__(self, members: Mapping[str, Any], path: str = "") -> None:
        """path: of the object in its request, empty for the request itself."""
        self._left = {name: value for name, value in members.items() if value is not None}
        self._path = f"{path}." if path else ""

    def take(self, name: str, read: Callable[[Any], Value], kind: str) -> Value | None:
        """Take a member; None if there is none.

        read: raises TypeError or ValueError unless the value is one of the kind.

        Raises:
            InvalidRequest: naming the member and the kind.
        """
        if name not in self._left:
            return None
        value = self._left.pop(name)
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            field = self._path + name
            raise InvalidRequest(field, f"{field} must be {kind}, got {_short(value)}") from error

    def text(self, name: str) -> str | None:
        return self.take(name, text, "a string")

    def flag(self, name: str) -> bool | None:
        return self.take(name, flag, "true or false")

    def integer(self, name: str) -> int | None:
        return self.take(name, integer, "an integer")

    def number(self, name: str) -> float | None:
        return self.take(name, number, "a number")

    def object(self, name: str) -> dict[str, Any] | None:
        return self.take(name, object_, "an object")

    def inner(self, name: str) -> "Fields | None":
        """The members of a member."""
        members = self.object(name)
        return None if members is None else Fields(members, self._path + name)

    def value(self, name: str) -> Any:
        """A member of any type."""
        return self._left.pop(name, None)

    def drop(self, names: frozenset[str]) -> None:
        """Members that change nothing."""
        for name in names & self._left.keys():
            del self._left[name]

    def check_all_taken(self) -> None:
        """Raise InvalidRequest if a member is left, which nobody knows."""
        for name in sorted(self._left):
            field = self._path + name
            raise InvalidRequest(field, f"{field} is no field of this request")


def text(value: object) -> str:
    return _of(str, value)


def flag(value: object) -> bool:
    return _of(bool, value)


def integer(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool):
        raise TypeError
    return _of(int, value)


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def object_(value: object) -> dict[str, Any]:
    return _of(dict, value)


def texts(value: object) -> list[str]:
    """A string stands for a list of one."""
    return [value] if isinstance(value, str) else [text(item) for item in _of(list, value)]


def integers(value: object) -> list[int]:
    return [integer(item) for item in _of(list, value)]


def biases(value: object) -> dict[int, float]:
    """Token ids are strings, as names in JSON are."""
    return {int(token_id): number(bias) for token_id, bias in object_(value).items()}


def _of(kind: type[Value], value: object) -> Value:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
