"""Sequences in order of arrival, whatever the order in which they came to this list.

Samples of one request have one arrival, and stand side by side.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.engine.sequence import Sequence


class Arrivals:
    """A short list kept sorted by arrival and sample, earliest first."""

    def __init__(self) -> None:
        self._seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._seqs)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._seqs)

    def __getitem__(self, index: int) -> Sequence:
        return self._seqs[index]

    def add(self, seq: Sequence) -> None:
        insort(self._seqs, seq, key=_order)

    def remove(self, seq: Sequence) -> None:
        del self._seqs[self.place(seq)]

    def place(self, seq: Sequence) -> int:
        """Where the sequence stands, or would stand."""
        return bisect_left(self._seqs, _order(seq), key=_order)

    def samples(self, arrival: int) -> list[Sequence]:
        """All sequences of one arrival."""
        start = bisect_left(self._seqs, (arrival, 0), key=_order)
        return self._seqs[start : bisect_left(self._seqs, (arrival + 1, 0), key=_order)]


def _order(seq: Sequence) -> tuple[int, int]:
    return seq.arrival, seq.sample_index
