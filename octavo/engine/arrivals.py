"""Sequences in order of arrival, whatever the order in which they came to this list."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.engine.sequence import Sequence


class Arrivals:
    """A short list kept sorted by `arrival`, earliest first."""

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
        insort(self._seqs, seq, key=_arrival)

    def remove(self, seq: Sequence) -> None:
        del self._seqs[bisect_left(self._seqs, seq.arrival, key=_arrival)]


def _arrival(seq: Sequence) -> int:
    return seq.arrival
