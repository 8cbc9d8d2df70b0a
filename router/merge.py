"""Joins the two token streams of a sample into one: each index once, in order.

    prefill worker:  0
    decode worker:   0 1 2 3 ...      --> 0 1 2 3 ...

The decode worker repeats the prefill worker's token as index 0; whichever comes first is used.
"""

from octavo.inference.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import DataLoss


class TokenMerge:
    """Output tokens of one sample so far."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.finish_reason = FINISH_REASON_UNSPECIFIED
        self._ahead: dict[int, int] = {}  # index -> token that came before its predecessors
        self._length: int | None = None  # known once a delta with a finish reason came
        self._final_reason: FinishReason = FINISH_REASON_UNSPECIFIED

    @property
    def is_finished(self) -> bool:
        return self.finish_reason != FINISH_REASON_UNSPECIFIED

    def add(self, delta: worker_pb2.TokenDelta) -> tuple[int, ...]:
        """Take a delta of either stream and return the tokens that are new and next in order.

        Raises:
            DataLoss: the streams disagree about a token.
        """
        if self._is_next(delta):
            self.token_ids.append(delta.token_ids[0])
            return (delta.token_ids[0],)
        for index, token_id in enumerate(delta.token_ids, start=delta.first_index):
            known = self.token_ids[index] if index < len(self.token_ids) else self._ahead.get(index)
            if known is not None and known != token_id:
                raise DataLoss(f"workers disagree on output token {index}: {known}, {token_id}")
            if index >= len(self.token_ids):
                self._ahead[index] = token_id
        if delta.finish_reason != FINISH_REASON_UNSPECIFIED:
            self._length = delta.first_index + len(delta.token_ids)
            self._final_reason = delta.finish_reason
        return self._take()

    def _is_next(self, delta: worker_pb2.TokenDelta) -> bool:
        """Whether it is, as most are, just the next token."""
        return (
            delta.first_index == len(self.token_ids)
            and len(delta.token_ids) == 1
            and delta.finish_reason == FINISH_REASON_UNSPECIFIED
            and not self._ahead
            and self._length is None
        )

    def _take(self) -> tuple[int, ...]:
        start = len(self.token_ids)
        while len(self.token_ids) != self._length and len(self.token_ids) in self._ahead:
            self.token_ids.append(self._ahead.pop(len(self.token_ids)))
        if self._length is not None and len(self.token_ids) >= self._length:
            self.finish_reason = self._final_reason
        return tuple(self.token_ids[start:])
