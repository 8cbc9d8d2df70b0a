"""Finds stop strings in text that arrives in pieces.

piece --> [automaton over all stop strings] --> text that cannot belong to a stop string
                   |
                   +-- held back: the longest end of the text that may yet become one
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Cuts a text at the first stop string that is complete, however the text is split.

    First means: ends first; of two that end at the same character, the longer. With stop strings
    "ab" and "abc" the text "abc" therefore ends at "ab".
    """

    def __init__(self, stops: Sequence[str], include_stop_text: bool = False) -> None:
        self._include_stop_text = include_stop_text
        self._held = ""
        # Aho-Corasick. Node 0 is the root; a node stands for a prefix of a stop string.
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop: list[str | None] = [None]  # the longest stop string that ends at the node
        self._fallback = [0]  # the longest proper end of the node's prefix that is a prefix too
        for stop in stops:
            self._add(stop)
        self._link()
        self._node = 0

    def push(self, text: str) -> tuple[str, str | None]:
        """Take a piece of text; return what may be sent and the stop string that ended it, if any.

        Nothing may be pushed after a match.
        """
        if len(self._depth) == 1:
            return text, None
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            stop = self._step(character)
            if stop is not None:
                self._held = ""
                return pending[: end if self._include_stop_text else end - len(stop)], stop
        return self._hold(pending), None

    def push_unstoppable(self, text: str) -> str:
        """Take a piece that may not end the output, whatever it completes; a stop string may begin
        in it. Returns what may be sent."""
        if len(self._depth) == 1:
            return text
        for character in text:
            self._step(character)
        return self._hold(self._held + text)

    def flush(self) -> str:
        """Return what is held at the end of the output; it turned out to be no stop string."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _hold(self, pending: str) -> str:
        """Hold back the end that a stop string may begin with; return the rest."""
        # Text that goes out with or without a match need not wait for one.
        num_held = 0 if self._include_stop_text else self._depth[self._node]
        cut = len(pending) - num_held
        self._held = pending[cut:]
        return pending[:cut]

    def _step(self, character: str) -> str | None:
        node = self._node
        while node and character not in self._children[node]:
            node = self._fallback[node]
        self._node = self._children[node].get(character, 0)
        return self._stop[self._node]

    def _add(self, stop: str) -> None:
        node = 0
        for character in stop:
            child = self._children[node].get(character)
            if child is None:
                child = len(self._children)
                self._children[node][character] = child
                self._children.append({})
                self._depth.append(self._depth[node] + 1)
                self._stop.append(None)
                self._fallback.append(0)
            node = child
        self._stop[node] = stop

    def _link(self) -> None:
        """Set each node's fallback, shallow ones first, and the stop strings that end there."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._children[node].items():
                fallback = self._fallback[node]
                while fallback and character not in self._children[fallback]:
                    fallback = self._fallback[fallback]
                self._fallback[child] = self._children[fallback].get(character, 0)
                if self._stop[child] is None:
                    self._stop[child] = self._stop[self._fallback[child]]
                queue.append(child)
