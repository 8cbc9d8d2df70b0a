"""Random ways through a grammar, token by token, as a model would go that likes all alike."""

import random
from collections.abc import Sequence

import numpy as np

from octavo.grammar.matcher import Grammar, Matcher


def allowed(matcher: Matcher, vocab_size: int) -> list[int]:
    """Tokens that may come next."""
    (row,) = matcher.masks.compute([matcher])
    found: list[int] = np.flatnonzero(np.unpackbits(row, bitorder="little")[:vocab_size]).tolist()
    return found


def walk(
    grammar: Grammar, rng: random.Random, vocab_size: int, ends: Sequence[int], max_tokens: int
) -> list[int]:
    """Output tokens; the last one is an end unless max_tokens cut it."""
    matcher = grammar.matcher()
    token_ids: list[int] = []
    while len(token_ids) < max_tokens:
        choices = allowed(matcher, vocab_size)
        assert choices, matcher.failure
        token_id = rng.choice(choices)
        token_ids.append(token_id)
        if token_id in ends:
            break
        matcher.accept(token_id)
        assert matcher.failure is None
    return token_ids
