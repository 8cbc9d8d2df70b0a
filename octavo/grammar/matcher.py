"""One sequence's way through its grammar, and the masks that a step needs.

    Grammar --matcher--> Matcher --accept--> Matcher ...     (fork: a copy that goes its own way)
                            |
    all of a step's --------+--allowed_bits--> [rows, bytes] which tokens may come next

A matcher belongs to one thread at a time. Nothing here raises for a token or a limit: a matcher
that failed allows no token and says why.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from octavo.grammar.source import reason_of

MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled constraint of one request, at which all its samples begin."""

    template: LLMatcher  # at its start, and never moved on
    masks: "Masks"

    def matcher(self, token_ids: Sequence[int] = ()) -> "Matcher":
        """At its start, or behind the output tokens that are there already."""
        inner = self.template.deep_copy()
        if token_ids:
            inner.consume_tokens(list(token_ids))
        return Matcher(inner, self.masks)


class Matcher:
    """Where one sequence stands."""

    __slots__ = ("inner", "masks")

    def __init__(self, inner: LLMatcher, masks: "Masks") -> None:
        self.inner = inner
        self.masks = masks

    def accept(self, token_id: int) -> None:
        """The sequence got this token; one that may not come makes the matcher fail."""
        self.inner.consume_token(token_id)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many leading ones of these tokens may come, one behind the other."""
        return self.inner.validate_tokens(list(token_ids))

    def fork(self) -> "Matcher":
        """Another one that stands here."""
        return Matcher(self.inner.deep_copy(), self.masks)

    @property
    def failure(self) -> str | None:
        """Why no token may come any more; None as long as that has not happened."""
        return reason_of(self.inner) if self.inner.is_error() else None


class Masks:
    """Computes masks over one vocabulary, many rows in one call."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        num_threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
        self._executor = LLExecutor(num_threads)

    def compute(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.uint8]:
        """[len(matchers), num_bytes]: bit i % 8 of byte i // 8 tells whether token i may come."""
        words = np.zeros((len(matchers), self._num_words), dtype=np.uint32)
        rows = [(matcher.inner, row) for row, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(
            rows, words.ctypes.data, self._num_words * 4, len(matchers)
        )
        for matcher, row in rows:
            if matcher.is_error():  # to the library that means: end here, as if all were well
                words[row] = 0
        return words.view(np.uint8)
