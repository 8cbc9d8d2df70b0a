"""JSON objects inside a model's output: where one ends, and what its members say.

{"name": "f", "arguments": {"a": "}"}} and so on
|---------- ObjectScanner ----------|
"""

import json
import re
from typing import NoReturn

_STRING_BREAK = re.compile(r'["\\]')
# What may stand between strings and brackets: white space, numbers, true, false, null.
_PLAIN = re.compile(r"[ \t\r\n:,0-9truefalsnE+.-]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSERS = {"{": "}", "[": "]"}


class NotAnObject(ValueError):
    """The text cannot become a JSON object, however it goes on."""


class ObjectScanner:
    """Finds the end of an object in a text that grows; looks at every character once."""

    def __init__(self, start: int) -> None:
        self._position = start  # of the next character to look at
        self._due: list[str] = []  # closing brackets of what is open
        self._is_in_string = False
        self._end: int | None = None

    def advance(self, text: str) -> int | None:
        """Look at what came new; return the index behind the object, None while it is open.

        Raises:
            NotAnObject: a character cannot stand where it does.
        """
        while self._end is None and self._position < len(text):
            if self._is_in_string:
                if not self._leave_string(text):
                    return None
                continue
            between = _PLAIN if self._due else _SPACE
            self._position = between.match(text, self._position).end()  # type: ignore[union-attr]
            if self._position == len(text):
                return None
            self._bracket_or_quote(text[self._position])
            self._position += 1
            if not self._due:
                self._end = self._position
        return self._end

    def _leave_string(self, text: str) -> bool:
        """Go behind the string's next quote or escape; False if that has not come yet."""
        found = _STRING_BREAK.search(text, self._position)
        if found is None:
            self._position = len(text)
            return False
        is_escape = found.group() == "\\"
        if is_escape and found.end() == len(text):
            self._position = found.start()
            return False
        self._position = found.end() + is_escape
        self._is_in_string = is_escape
        return True

    def _bracket_or_quote(self, character: str) -> None:
        if character in _CLOSERS:
            self._due.append(_CLOSERS[character])
        elif character == '"' and self._due:
            self._is_in_string = True
        elif self._due and character == self._due[-1]:
            self._due.pop()
        else:
            raise NotAnObject(f"unexpected {character!r}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


# Models write newlines into strings; anything else must be proper JSON.
_LENIENT = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)


def read_object(text: str) -> dict[str, object]:
    """The members of a JSON object, in their order.

    Raises:
        ValueError: it is no JSON object, or nested too deep to be read.
    """
    try:
        value = _STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, got {type(value).__name__}")
    return value


def read_members(text: str) -> dict[str, tuple[object, str]]:
    """Each member's value and the JSON it is written as; newlines in strings are forgiven.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        if not isinstance(_LENIENT.decode(text), dict):
            raise ValueError("not a JSON object")
        return _split(text)
    except RecursionError as error:
        raise ValueError("is nested too deep") from error


def as_written(value: object, source: str) -> str:
    """The source of a value, or proper JSON of it where the source was only forgiven."""
    try:
        _STRICT.decode(source)
    except ValueError:
        return json.dumps(value)
    return source


def _split(text: str) -> dict[str, tuple[object, str]]:
    """Members of an object that is known to be valid."""
    members: dict[str, tuple[object, str]] = {}
    position = _skip(text, _skip(text, 0) + 1)
    while text[position] == '"':
        key, position = _LENIENT.raw_decode(text, position)
        position = _skip(text, _skip(text, position) + 1)  # the colon
        value, end = _LENIENT.raw_decode(text, position)
        members[key] = (value, text[position:end])
        position = _skip(text, _skip(text, end) + 1)  # the comma, or the end
        if position >= len(text):
            break
    return members


def _skip(text: str, position: int) -> int:
    """The next position that is no white space."""
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]
