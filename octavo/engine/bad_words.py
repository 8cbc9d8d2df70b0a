"""Finds which tokens would complete a banned sequence after the tokens so far."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]


class BadWords:
    """Banned sequences, looked up by the token before their last one."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self.single = np.array(sorted({s[0] for s in sequences if len(s) == 1}), dtype=np.int64)
        # Last token of the beginning -> (beginning, token that would complete it).
        self._longer: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for sequence in sequences:
            if len(sequence) > 1:
                self._longer[sequence[-2]].append((list(sequence[:-1]), sequence[-1]))

    def after(self, token_ids: list[int]) -> TokenIds:
        """Tokens, some perhaps twice, that may not follow; token_ids holds at least one."""
        candidates = self._longer.get(token_ids[-1])
        if not candidates:
            return self.single
        completing = [last for begin, last in candidates if token_ids[-len(begin) :] == begin]
        return np.concatenate([self.single, np.array(completing, dtype=np.int64)])
