"""Takes tool calls out of an output's text while it arrives.

                +-- gap: white space at the start, and behind a call
text, piece by  |         |  opener, or a bare "{"
piece --------> +-- text  +----------> call: JSON, then the closer --> ToolCall
                |    ^                   |
                |    +---- no call ------+  its marker is text; what follows is looked at anew
                v
              text: held back is only what may yet become a marker or a call
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from octavo.text.json_object import NotAnObject, ObjectScanner
from octavo.text.tool_calls import ToolCall, ToolUse

_SPACE = " \t\r\n"
# An object that begins with another key is an answer, and need not be held until it ends.
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')
_CALL_KEYS = frozenset({"name", "type", "id", "arguments", "parameters"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of output turned out to be; the text stands around the calls."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class OutputParser(Protocol):
    """Takes an output's text apart."""

    num_calls: int

    def push(self, text: str, is_last: bool = False) -> Parsed: ...


class PlainText:
    """The parser of outputs without tools: text is text."""

    num_calls = 0

    def push(self, text: str, is_last: bool = False) -> Parsed:
        return Parsed(text)


def output_parser(tools: ToolUse | None) -> OutputParser:
    """The parser of one output."""
    return PlainText() if tools is None else ToolCallParser(tools)


class _State(Enum):
    GAP = auto()
    TEXT = auto()
    CALL = auto()


class ToolCallParser:
    """Parts one output into text and calls, the same however the text is cut into pieces.

    What is no proper call stays text, all of it. White space between and behind calls, and before
    one that begins the output, belongs to them and is dropped. A call cut off at the end of the
    output counts if its JSON was complete.
    """

    def __init__(self, tools: ToolUse) -> None:
        self._tools = tools
        self._format = tools.format
        self._held = ""
        self._state = _State.GAP
        self._scanner = ObjectScanner(0)
        self._start = 0  # of the call's JSON in what is held
        self._is_marked = False  # the call was announced by a marker
        self.num_calls = 0

    def push(self, text: str, is_last: bool = False) -> Parsed:
        """Take the next piece of text; return what is certain now, with the last piece all."""
        self._held += text
        texts: list[str] = []
        calls: list[ToolCall] = []
        steps = {_State.GAP: self._gap, _State.TEXT: self._text, _State.CALL: self._call}
        while self._held:
            found = steps[self._state](is_last)
            if found is None:
                break
            if isinstance(found, ToolCall):
                calls.append(found)
                self.num_calls += 1
            else:
                texts.append(found)
        return Parsed("".join(texts), tuple(calls))

    def _gap(self, is_end: bool) -> str | None:
        """Behind a call, or at the start: only a call may follow, or text begins."""
        separators = self._format.separators if self.num_calls else ""
        rest = self._held.lstrip(_SPACE + separators)
        gap = len(self._held) - len(rest)
        if not rest:
            return self._end_gap() if is_end else None
        if rest.startswith(self._format.opener):
            self._begin_call(gap + len(self._format.opener), is_marked=True)
            return ""
        if not is_end and self._format.opener.startswith(rest):
            return None
        if self._format.is_bare and rest.startswith("{"):
            self._begin_call(gap, self._is_marked)
            return ""
        self._state = _State.TEXT
        return ""

    def _end_gap(self) -> str:
        gap = self._take(len(self._held))
        return gap if gap.strip(_SPACE) or not self.num_calls else ""

    def _text(self, is_end: bool) -> str | None:
        """Anywhere else: only a marker can begin a call."""
        at = self._held.find(self._format.opener)
        if at >= 0:
            text = self._take(at)
            self._begin_call(len(self._format.opener), is_marked=True)
            return text
        num_held = 0 if is_end else max(_overlap(self._held, m) for m in self._format.markers)
        return self._take(len(self._held) - num_held) or None

    def _begin_call(self, start: int, is_marked: bool) -> None:
        self._state = _State.CALL
        self._start = start
        self._is_marked = is_marked
        self._scanner = ObjectScanner(start)

    def _call(self, is_end: bool) -> str | ToolCall | None:
        try:
            end = self._scanner.advance(self._held)
        except NotAnObject:
            return self._release()
        if end is None:
            return self._release() if is_end or self._is_answer() else None
        call = self._tools.read_call(self._held[self._start : end], self._is_marked)
        if call is None:
            return self._release()
        rest = self._held[end:].lstrip(_SPACE)
        closer = self._format.closer
        if closer and not rest.startswith(closer):
            if not closer.startswith(rest):
                return self._release()
            if not is_end:
                return None
            closer = rest  # the output ended within it
        self._held = rest[len(closer) :] if closer else self._held[end:]
        self._state = _State.GAP
        return call

    def _is_answer(self) -> bool:
        """Whether an object that no marker announced cannot be a call, by its first key."""
        if self._is_marked:
            return False
        first = _FIRST_KEY.match(self._held, self._start)
        return first is not None and first.group(1) not in _CALL_KEYS

    def _release(self) -> str:
        """It is no call: its marker, or its brace, is text."""
        self._state = _State.TEXT
        is_bare = not self._held[: self._start].endswith(self._format.opener)
        return self._take(self._start + is_bare)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that begins the marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
