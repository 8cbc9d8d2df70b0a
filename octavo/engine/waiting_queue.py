"""Sequences that hold no blocks yet, first come first served."""

from collections import OrderedDict

from octavo.engine.sequence import Sequence


class WaitingQueue:
    """A queue with O(1) removal from anywhere; it also counts the tokens it will bring."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Sequence] = OrderedDict()
        self.num_prefill_tokens = 0  # of sequences whose prompt is computed here

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def first(self) -> Sequence:
        return next(iter(self._by_id.values()))

    def append(self, seq: Sequence) -> None:
        self._by_id[seq.seq_id] = seq
        self.num_prefill_tokens += _num_prefill_tokens(seq)

    def remove(self, seq: Sequence) -> None:
        del self._by_id[seq.seq_id]
        self.num_prefill_tokens -= _num_prefill_tokens(seq)


def _num_prefill_tokens(seq: Sequence) -> int:
    return 0 if seq.is_pulled else seq.num_tokens
