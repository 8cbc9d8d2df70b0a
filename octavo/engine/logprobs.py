"""Log-probabilities of tokens, from rows of logits as the model gave them.

log p(token) = logit - log sum exp(logits), the sum in float64: no rule, no temperature, no cut, and
nothing of other rows.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.cpu.softmax_weights import weigh
from octavo.token_logprobs import TokenLogprobs

Row = npt.NDArray[np.float32]  # [vocab_size]
Rows = npt.NDArray[np.float32]  # [N, vocab_size]


def on_host(logits: torch.Tensor) -> Rows:
    """Rows of logits, in the model's dtype and anywhere, as `score` takes them."""
    rows: Rows = logits.float().cpu().numpy()
    return rows


def score(rows: Rows, token_ids: Sequence[int], num_top: int) -> TokenLogprobs:
    """The log-probability of one token in each row, and those of the num_top likeliest.

    Every logit is finite or -inf, the greatest of a row finite.
    """
    num_top = min(num_top, rows.shape[1])
    logprobs: list[float] = []
    top_token_ids: list[int] = []
    top_logprobs: list[float] = []
    for row, token_id in zip(rows, token_ids, strict=True):
        log_total = _log_sum_exp(row)
        logprobs.append(float(row[token_id]) - log_total)
        top = _likeliest(row, num_top)
        top_token_ids += top.tolist()
        top_logprobs += (row[top].astype(np.float64) - log_total).tolist()
    return TokenLogprobs(tuple(logprobs), num_top, tuple(top_token_ids), tuple(top_logprobs))


def _log_sum_exp(row: Row) -> float:
    greatest = float(row.max())
    return greatest + math.log(float(weigh(row, greatest, 1.0).sum()))


def _likeliest(row: Row, count: int) -> npt.NDArray[np.int64]:
    """Ids of the greatest logits, greatest first; of equals the lower id first."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    least = np.partition(row, len(row) - count)[len(row) - count]
    token_ids = np.flatnonzero(row >= least)
    order = np.argsort(-row[token_ids], kind="stable")[:count]
    return token_ids[order]
