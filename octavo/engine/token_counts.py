"""How often each token came so far, in arrays that a step can use as they are."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct tokens in the order in which they first came, and their counts."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        ids, counts = np.unique(np.array(token_ids, dtype=np.int64), return_counts=True)
        self._places = {token_id: place for place, token_id in enumerate(ids.tolist())}
        self._token_ids = ids
        self._counts = counts.astype(np.float32)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[N], each token once."""
        return self._token_ids[: len(self)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[N], 1 or more each."""
        return self._counts[: len(self)]

    def copy(self) -> "TokenCounts":
        """Counts of the same tokens, that go on by themselves."""
        twin = TokenCounts()
        twin._places = self._places.copy()
        twin._token_ids, twin._counts = self._token_ids.copy(), self._counts.copy()
        return twin

    def add(self, token_id: int) -> None:
        """One more of it."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self)
            self._make_room()
            self._token_ids[place] = token_id
            self._counts[place] = 0
        self._counts[place] += 1

    def _make_room(self) -> None:
        if len(self) <= len(self._token_ids):
            return
        capacity = max(FIRST_CAPACITY, 2 * len(self._token_ids))
        self._token_ids = np.resize(self._token_ids, capacity)
        self._counts = np.resize(self._counts, capacity)
