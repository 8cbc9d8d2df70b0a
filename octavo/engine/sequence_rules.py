"""What a sequence's rules need to know of it: its lists, and counts kept up token by token.

The sequence owns its rules and tells them of every token it gets, so that they hold after a
preemption, whose tokens stay known, and on a decode worker, which is given the first token.
"""

from collections.abc import Iterable
from copy import copy

import numpy as np
import numpy.typing as npt

from octavo.engine.bad_words import BadWords
from octavo.engine.token_counts import TokenCounts
from octavo.grammar.matcher import Grammar
from octavo.sampling_params import SamplingParams

TokenIds = npt.NDArray[np.int64]


class SequenceRules:
    """Rules of one sequence, logit_rules.py applies them."""

    def __init__(
        self,
        sampling: SamplingParams,
        token_ids: list[int],
        num_prompt_tokens: int,
        eos_token_ids: Iterable[int],
        grammar: Grammar | None = None,
    ) -> None:
        """token_ids: prompt and, from num_prompt_tokens on, the output so far."""
        self.bias_ids = np.array(list(sampling.logit_bias), dtype=np.int64)
        self.bias = np.array(list(sampling.logit_bias.values()), dtype=np.float32)
        self.allowed_ids = np.array(sorted(set(sampling.allowed_token_ids)), dtype=np.int64)
        self.bad_words = BadWords(sampling.bad_words_ids)
        self.repetition_penalty = sampling.repetition_penalty
        self.presence_penalty = sampling.presence_penalty
        self.frequency_penalty = sampling.frequency_penalty
        self._min_tokens = sampling.min_tokens
        self._end_ids = np.array(sorted(sampling.end_token_ids(eos_token_ids)), dtype=np.int64)
        output = token_ids[num_prompt_tokens:]
        self.matcher = None if grammar is None else grammar.matcher(output)
        self._num_output = len(output)
        # Of prompt and output; of the output alone. Kept only where a penalty asks for them.
        self.seen = TokenCounts(token_ids if self.repetition_penalty != 1.0 else ())
        self.written = TokenCounts(output if self._counts_output else ())

    @property
    def _counts_output(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def copy(self) -> "SequenceRules":
        """The same rules, which may be told of other tokens from here on."""
        twin = copy(self)
        twin.matcher = None if self.matcher is None else self.matcher.fork()
        twin.seen, twin.written = self.seen.copy(), self.written.copy()
        return twin

    def add(self, token_id: int) -> None:
        """The sequence got an output token."""
        self._num_output += 1
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self.repetition_penalty != 1.0:
            self.seen.add(token_id)
        if self._counts_output:
            self.written.add(token_id)

    def banned_ids(self, token_ids: list[int]) -> TokenIds:
        """Tokens that may not follow token_ids, those of the sequence."""
        banned = self.bad_words.after(token_ids)
        if self._num_output >= self._min_tokens:
            return banned
        return np.concatenate([banned, self._end_ids])


def has_rules(sampling: SamplingParams) -> bool:
    """Whether anything is to be done to the logits of such a sequence."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.min_tokens > 0
        or sampling.logit_bias
        or sampling.bad_words_ids
        or sampling.allowed_token_ids
        or sampling.constraint is not None
    )
