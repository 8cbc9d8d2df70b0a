"""The likeliest continuations of beams, from the logits of all beams of a search.

    logits --> float32 log-softmax --> the request's rules --> + sums so far --> the K best

As in `transformers`, rules change log-probabilities here, and these are not normalised again.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from itertools import groupby

import torch

from octavo.engine.choice import Choice
from octavo.engine.draft_row import BatchRow
from octavo.engine.errors import InvalidLogits, NoTokenLeft
from octavo.engine.logit_rules import apply_rules


def choose_beams(
    logits: torch.Tensor, seqs: Listed[BatchRow], rows: Iterable[int], chosen: list[Choice]
) -> None:
    """Set `chosen` of those rows that are beams; it holds InvalidLogits where logits are that.

    Beams of a search stand side by side; what is found stands in the place of the last one.
    """
    beamed = [row for row in rows if seqs[row].beams is not None]
    for _, group in groupby(beamed, key=lambda row: id(seqs[row].beams)):
        _choose(logits, seqs, list(group), chosen)


def _choose(
    logits: torch.Tensor, seqs: Listed[BatchRow], rows: list[int], chosen: list[Choice]
) -> None:
    invalid = next((chosen[row] for row in rows if isinstance(chosen[row], InvalidLogits)), None)
    for row in rows:
        chosen[row] = None
    beams = [seqs[row] for row in rows]
    chosen[rows[-1]] = _find(logits, beams, rows) if invalid is None else invalid


def _find(logits: torch.Tensor, beams: list[BatchRow], rows: list[int]) -> Choice:
    logprobs = torch.log_softmax(logits[rows].float(), dim=-1)
    if beams[0].has_rules:
        apply_rules(logprobs, beams)
    assert beams[0].beams is not None
    found = beams[0].beams.candidates(logprobs)
    if found.scores[0] == -torch.inf:
        return NoTokenLeft("the request's own rules leave its beams no token to choose")
    return found
