"""Rules that change a row of logits before its token is chosen, in this order:

    logit_bias -> allowed_token_ids -> bad words, min_tokens -> grammar -> repetition penalty
               -> presence, frequency penalty -> (sampler: temperature, min-p, top-k, top-p)

Each step is a function of the rows and their sequences and works on all rows at once, through lists
of (row, token) places: what a rule does not name is neither read nor written. A grammar alone names
nearly all tokens of its rows, by a mask. Arithmetic is float32, as in the logits processors of
`transformers`.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.sequence_rules import SequenceRules, TokenIds


class Ruled(Protocol):
    """A row of a sequence that has rules."""

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def rules(self) -> SequenceRules: ...


def apply_rules(logits: torch.Tensor, seqs: Listed[Ruled]) -> None:
    """Change the rows of logits [len(seqs), vocab_size] float32 in place; every one has rules."""
    rules = [seq.rules for seq in seqs]
    token_ids = [seq.token_ids for seq in seqs]
    for step in STEPS:
        step(logits, rules, token_ids)


def add_bias(
    logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]
) -> None:
    """logit_bias."""
    places = _Places(logits, [rule.bias_ids for rule in rules])
    if places:
        bias = np.concatenate([rule.bias for rule in rules])
        places.put(places.values() + places.tensor(bias))


def keep_allowed(
    logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]
) -> None:
    """allowed_token_ids: all others are ruled out."""
    places = _Places(logits, [rule.allowed_ids for rule in rules])
    if places:
        kept = places.values()
        limited = [row for row, rule in enumerate(rules) if len(rule.allowed_ids)]
        logits[limited] = -torch.inf
        places.put(kept)


def ban(logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]) -> None:
    """Bad words, and whatever ends the output before min_tokens."""
    banned = [rule.banned_ids(ids) for rule, ids in zip(rules, token_ids, strict=True)]
    places = _Places(logits, banned)
    if places:
        places.put(torch.full_like(places.values(), -torch.inf))


def follow_grammars(
    logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]
) -> None:
    """Tokens with which a row's grammar cannot go on, its end among them."""
    found = [(row, rule.matcher) for row, rule in enumerate(rules) if rule.matcher is not None]
    if found:
        matchers = [matcher for _, matcher in found]
        banned = _unpacked(~matchers[0].masks.compute(matchers), logits)
        for (row, _), is_banned in zip(found, banned, strict=True):
            logits[row].masked_fill_(is_banned, -torch.inf)


def _unpacked(bits: npt.NDArray[np.uint8], logits: torch.Tensor) -> torch.Tensor:
    """[rows, vocab_size] bool of [rows, bytes] whose lowest bits come first."""
    vocab_size = logits.shape[1]
    if logits.is_cuda:
        return unpack_on_device(torch.from_numpy(bits).to(logits.device), vocab_size)
    each = np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little")
    return torch.from_numpy(each.view(np.bool_))


def unpack_on_device(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The same of bits that are on a GPU: an eighth of the bytes had to go there."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(-1) >> places) & 1).flatten(1)[:, :vocab_size].bool()


def penalise_repetition(
    logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]
) -> None:
    """repetition_penalty: of tokens in prompt or output."""
    places = _Places(logits, [rule.seen.token_ids for rule in rules])
    if places:
        penalty = places.per_place([rule.repetition_penalty for rule in rules])
        values = places.values()
        places.put(torch.where(values < 0, values * penalty, values / penalty))


def penalise_output(
    logits: torch.Tensor, rules: Listed[SequenceRules], token_ids: Listed[list[int]]
) -> None:
    """presence_penalty and frequency_penalty: of tokens in the output."""
    places = _Places(logits, [rule.written.token_ids for rule in rules])
    if places:
        counts = places.tensor(np.concatenate([rule.written.counts for rule in rules]))
        frequency = places.per_place([rule.frequency_penalty for rule in rules])
        presence = places.per_place([rule.presence_penalty for rule in rules])
        places.put(places.values() - (frequency * counts + presence))


Step = Callable[[torch.Tensor, Listed[SequenceRules], Listed[list[int]]], None]
STEPS: tuple[Step, ...] = (
    add_bias,
    keep_allowed,
    ban,
    follow_grammars,
    penalise_repetition,
    penalise_output,
)


class _Places:
    """Tokens of some rows of logits, in one list; false if there are none."""

    def __init__(self, logits: torch.Tensor, token_ids: Listed[TokenIds]) -> None:
        """token_ids: one array for each row."""
        self._logits = logits
        self._sizes = [len(ids) for ids in token_ids]
        self._num_places = sum(self._sizes)
        if self._num_places:
            rows = np.repeat(np.arange(len(token_ids)), self._sizes)
            self._index = (self.tensor(rows), self.tensor(np.concatenate(token_ids)))

    def __bool__(self) -> bool:
        return self._num_places > 0

    def values(self) -> torch.Tensor:
        """[N], a copy."""
        return self._logits[self._index]

    def put(self, values: torch.Tensor) -> None:
        self._logits[self._index] = values

    def per_place(self, row_values: list[float]) -> torch.Tensor:
        """[N] float32: each place's is that of its row."""
        return self.tensor(np.repeat(np.array(row_values, dtype=np.float32), self._sizes))

    def tensor(self, array: npt.NDArray[np.int64] | npt.NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._logits.device)
