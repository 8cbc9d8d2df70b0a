"""Chooses each row's token from its logits: one draw a row, independent of every other row.

    logits -> weights w = exp((logit - max) / T) -> min-p -> top-k -> top-p -> draw

Kept tokens stand in order of descending weight, ties by id. The draw is the first whose cumulative
weight (float64) exceeds u times the kept total, clamped to the last nonzero one. `draw` is this
rule to the letter. A kernel finds the same tokens without sorting (kernels/cpu/token_draw.py), and
leaves to `draw` the few rows where a rounding of its sums could decide. There sorting the whole
vocabulary is avoided: a floor on the weight cuts out a head of the sorted order, and only when the
answer lies beyond the head is the floor lowered.
"""

import math
from collections.abc import Sequence as Listed
from collections.abc import Set
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.draft_row import BatchRow
from octavo.engine.errors import InvalidLogits
from octavo.engine.philox import token_uniforms
from octavo.kernels.cpu.argmax import argmax
from octavo.kernels.cpu.softmax_weights import weigh
from octavo.kernels.cpu.token_draw import FLOOR_MARGIN, LEAST_FLOAT32, UNSURE, draw_rows
from octavo.sampling_params import SamplingParams

Row = npt.NDArray[np.float32]  # [vocab_size]
Weights = npt.NDArray[np.float64]

# Least weights of the heads tried in turn, the greatest weight being 1; 0 keeps all.
HEAD_FLOORS = (math.exp(-6.0), math.exp(-12.0), 0.0)


def sample(
    logits: torch.Tensor, seqs: Listed[BatchRow], skipped: Set[int] = frozenset()
) -> list[int | InvalidLogits]:
    """Choose the next token of each sequence.

    logits: [len(seqs), vocab_size], in the model's dtype. A row without a finite greatest logit
    gives InvalidLogits in its place. Nothing is drawn for the skipped rows; they give any
    token.
    """
    greatest, token_ids = _argmax(logits)
    chosen: list[int | InvalidLogits] = [*token_ids.tolist()]
    for row in np.flatnonzero(~np.isfinite(greatest)).tolist():
        chosen[row] = InvalidLogits(
            f"the greatest logit of sequence {seqs[row].seq_id} is {greatest[row]}"
        )
    drawn = [
        row
        for row, seq in enumerate(seqs)
        if not seq.sampling.is_greedy
        and row not in skipped
        and not isinstance(chosen[row], InvalidLogits)
    ]
    if drawn:
        picked = [seqs[row] for row in drawn]
        host = logits[drawn].cpu() if logits.is_cuda else logits
        places = range(len(drawn)) if logits.is_cuda else drawn
        draws = _draw_rows(host, places, greatest[drawn], picked)
        for row, token_id in zip(drawn, draws, strict=True):
            chosen[row] = token_id
    return chosen


def _draw_rows(
    logits: torch.Tensor, rows: Listed[int], greatest: Row, seqs: Listed[BatchRow]
) -> list[int]:
    """A token for each of some rows of logits, whose greatest logit is known."""
    uniforms = token_uniforms(
        [seq.draw_seed for seq in seqs],
        [seq.num_tokens for seq in seqs],
    )
    ranges = [(s.temperature, s.top_p, s.min_p) for s in (seq.sampling for seq in seqs)]
    numbers = np.column_stack([greatest.astype(np.float64), ranges, uniforms])
    top_ks = np.array([min(seq.sampling.top_k, logits.shape[1]) for seq in seqs], dtype=np.int64)
    token_ids: list[int] = draw_rows(logits, np.array(rows), numbers, top_ks).tolist()
    for i, token_id in enumerate(token_ids):
        if token_id == UNSURE:  # rounding decides: the rule, to the letter
            line = logits[rows[i]].float().numpy()
            token_ids[i] = draw(line, seqs[i].sampling, float(uniforms[i]))
    return token_ids


def draw(logits: Row, sampling: SamplingParams, uniform: float) -> int:
    """The token of one row; `uniform` in [0, 1)."""
    row = RowWeights(logits, sampling.temperature)
    top_k = sampling.top_k if 0 < sampling.top_k < len(logits) else 0
    for floor in HEAD_FLOORS:
        head = row.head(max(floor, sampling.min_p))
        is_all = floor <= sampling.min_p
        if 0 < top_k <= len(head):
            num_kept, total = top_k, head.total(top_k)
        elif is_all:
            num_kept, total = len(head), row.total(sampling.min_p)
        elif top_k > 0:
            continue
        else:
            # Tokens beyond the head count in the total, and the answer may be one of them.
            num_kept, total = len(logits), row.total(sampling.min_p)
        token_id = head.find(sampling.top_p, uniform, total, num_kept)
        if token_id is not None:
            return token_id
    raise AssertionError("the last floor keeps every token")


class Head:
    """Leading tokens of a row's sorted order.

    Values are sorted without their ids, which is several times faster: equal weights are in order
    of ids, so the n-th of the order is found by its value and its rank among equals.
    """

    def __init__(self, token_ids: npt.NDArray[np.intp] | None, weights: Weights) -> None:
        self._token_ids = token_ids  # ascending; None if all
        self._weights = weights  # of token_ids
        self._descending = np.sort(weights)[::-1]
        self._cumulative = np.cumsum(self._descending)

    def __len__(self) -> int:
        return len(self._weights)

    def total(self, num_tokens: int) -> float:
        return float(self._cumulative[num_tokens - 1])

    def find(self, top_p: float, uniform: float, total: float, num_kept: int) -> int | None:
        """The draw when the first num_kept tokens of the order are kept, `total` in all.

        None if it lies beyond the head.
        """
        cumulative = self._cumulative[:num_kept]
        kept_total = total
        if top_p < 1.0:
            cut = int(np.searchsorted(cumulative, top_p * total, side="left"))
            if cut < len(cumulative):
                kept_total = float(cumulative[cut])
                num_kept = cut + 1
            elif num_kept > len(self):
                return None
        index = int(np.searchsorted(cumulative, uniform * kept_total, side="right"))
        if index == len(self) < num_kept:
            return None
        last_nonzero = len(self) - int(np.searchsorted(self._descending[::-1], 0.0, "right")) - 1
        return self._token_id(min(index, num_kept - 1, last_nonzero))

    def _token_id(self, index: int) -> int:
        weight = self._descending[index]
        first_equal = len(self) - int(np.searchsorted(self._descending[::-1], weight, "right"))
        place = int(np.flatnonzero(self._weights == weight)[index - first_equal])
        return place if self._token_ids is None else int(self._token_ids[place])


class RowWeights:
    """Weights of one row, computed no further than asked for."""

    def __init__(self, logits: Row, temperature: float) -> None:
        self._logits = logits
        self._temperature = temperature
        self._greatest = float(logits.max())

    def head(self, floor: float) -> Head:
        """Every token whose weight is at least `floor`, in sorted order."""
        if floor == 0.0:
            return Head(None, self._all)
        # A little below the floor first, on float32: a comparison loses no token to rounding.
        lowest = self._greatest + self._temperature * (math.log(floor) - FLOOR_MARGIN)
        token_ids = np.flatnonzero(self._logits >= np.float32(max(lowest, LEAST_FLOAT32)))
        weights = self._weigh(self._logits[token_ids])
        kept = weights >= floor
        return Head(token_ids[kept], weights[kept])

    def total(self, floor: float) -> float:
        """Sum, in order of ids, of the weights that are at least `floor`."""
        if floor == 0.0:
            return self._sum
        weights = self._all
        return float(weights[weights >= floor].sum())

    @cached_property
    def _sum(self) -> float:
        return float(self._all.sum())

    @cached_property
    def _all(self) -> Weights:
        return self._weigh(self._logits)

    def _weigh(self, logits: Row) -> Weights:
        return weigh(logits, self._greatest, self._temperature)


def _argmax(logits: torch.Tensor) -> tuple[Row, npt.NDArray[np.int64]]:
    """(greatest logit, first id that has it) of each row; NaN counts as the greatest."""
    if not logits.is_cuda:
        return argmax(logits)
    greatest, token_ids = logits.max(dim=-1)
    return greatest.float().cpu().numpy(), token_ids.cpu().numpy()
