"""A decode row for a token that is only guessed, and what it shares with the row of a sequence.

    sequence   .. t7 t8 | newest t9       row of t9    draws token 10
    guess      t10 t11                    row of t10   draws token 11, which counts if 10 is t10
                                          row of t11   draws token 12, which counts if 11 is t11

Each row has the token's own position, slot and length, so it computes and draws what it would in a
step of its own. A wrong guess leaves KV behind the sequence's last token, which the next row there
overwrites; nobody else sees that slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.engine.adapter import Adapter
from octavo.engine.sequence import Sequence, Status
from octavo.engine.sequence_rules import SequenceRules
from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """Looks to the model and to the sampler as its sequence will, should the guess be right."""

    seq: Sequence
    guess: list[int]  # the sequence's next tokens, up to this row's
    num_tokens: int  # of the sequence, all of the guess included

    @property
    def newest_token_id(self) -> int:
        return self.guess[-1]

    @property
    def is_right(self) -> bool:
        """Whether the sequence, still running, has drawn the whole guess by now."""
        seq = self.seq
        return (
            seq.status is Status.RUNNING
            and len(seq.token_ids) == self.num_tokens
            and seq.newest_token_id == self.newest_token_id
        )

    @property
    def seq_id(self) -> str:
        return self.seq.seq_id

    @property
    def sample_index(self) -> int:
        return self.seq.sample_index

    @property
    def sampling(self) -> SamplingParams:
        return self.seq.sampling

    @property
    def adapter(self) -> Adapter | None:
        return self.seq.adapter

    @property
    def draw_seed(self) -> int:
        return self.seq.draw_seed

    @property
    def beams(self) -> None:
        """Beams have no guesses."""

    @property
    def is_plain(self) -> bool:
        return self.seq.is_plain

    @property
    def has_rules(self) -> bool:
        return self.seq.has_rules

    @property
    def rules(self) -> SequenceRules:
        """The sequence's, that have been told of the guess."""
        rules = self.seq.rules.copy()
        for token_id in self.guess:
            rules.add(token_id)
        return rules

    @property
    def token_ids(self) -> list[int]:
        return self.seq.token_ids + self.guess

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.seq.num_prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.num_tokens - 1

    @property
    def packed_table(self) -> npt.NDArray[np.int32]:
        return self.seq.packed_table


BatchRow = Sequence | DraftRow  # has one row, behind which a token may be drawn
