"""Beam search of one request: which beams go on, which have ended, when nothing can improve.

    log-probabilities of all next tokens --candidates--> the K best --advance--> W beams go on
                                                                         +-----> finished, W at most

The rules, and float32, are those of `transformers` (generation/utils.py, `_beam_search`):

- K = max(2, 1 + number of end tokens) * W: as many can end, and W are left to go on.
- A candidate that ends is kept if it is one of the W best; its score is its sum of
  log-probabilities over length ** length_penalty.
- It is over when no beam can improve on the worst of W finished ones, when max_tokens are there,
  or, with early_stopping, when there are W.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch

from octavo.sampling_params import BeamSearch, SamplingParams

NEVER = -1.0e9  # the score of a beam that is none


@dataclass(frozen=True, slots=True, eq=False)
class BeamCandidates:
    """The likeliest continuations of all beams, best first."""

    scores: torch.Tensor  # [K] float32, sums of log-probabilities
    parents: list[int]  # which beam each goes on from
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Beam:
    """A finished one."""

    token_ids: tuple[int, ...]
    cumulative_logprob: float
    score: float
    has_stopped: bool  # by an end token


class BeamState:
    """The search so far."""

    def __init__(self, sampling: SamplingParams, eos_token_ids: Iterable[int]) -> None:
        assert sampling.beam_search is not None
        self._params: BeamSearch = sampling.beam_search
        self._max_tokens = sampling.max_tokens
        self._end_ids = sampling.end_token_ids(eos_token_ids)
        self.is_done = False
        width = self._params.width
        self._num_candidates = max(2, 1 + len(self._end_ids)) * width
        # Of the beams that go on, [W]. At first all are the prompt, and only one of them counts.
        self._scores = torch.tensor([0.0] + [NEVER] * (width - 1))
        self._outputs: list[tuple[int, ...]] = [()] * width
        self._finished: list[Beam] = []  # best first

    def candidates(self, logprobs: torch.Tensor) -> BeamCandidates:
        """The best continuations.

        logprobs: [W, vocab_size] float32 of each beam's next token, or [1, vocab_size] of the
            prompt's.
        """
        sums = (logprobs + self._scores.to(logprobs.device)[:, None]).flatten()
        scores, places = torch.topk(sums, min(self._num_candidates, len(sums)))
        vocab_size = logprobs.shape[1]
        return BeamCandidates(
            scores.cpu(), (places // vocab_size).tolist(), (places % vocab_size).tolist()
        )

    def advance(self, found: BeamCandidates) -> list[tuple[int, int]]:
        """Take the next step; returns (parent, token) of the W beams that go on."""
        length = len(self._outputs[0]) + 1
        at_end = length >= self._max_tokens
        ends = [at_end or token_id in self._end_ids for token_id in found.token_ids]
        self._finish(found, ends, length)
        open_scores = found.scores + torch.tensor(ends) * NEVER
        self._scores, places = torch.topk(open_scores, min(self._params.width, len(ends)))
        moves = [(found.parents[place], found.token_ids[place]) for place in places.tolist()]
        self._outputs = [(*self._outputs[parent], token_id) for parent, token_id in moves]
        self.is_done = all(ends) or self._cannot_improve(length)
        return moves

    def results(self, count: int) -> list[Beam]:
        """The best of the finished beams, best first."""
        beams = self._finished[:count]
        # Fewer have ended only where the request's own rules left no other token to choose.
        missing = zip(self._outputs, self._scores.tolist(), strict=True)
        for token_ids, score in islice(missing, count - len(beams)):
            beams.append(Beam(token_ids, score, score, has_stopped=False))
        return beams

    def _finish(self, found: BeamCandidates, ends: list[bool], length: int) -> None:
        width = self._params.width
        sums = found.scores[:width]
        scores = (sums / length**self._params.length_penalty).tolist()
        for place, (total, score) in enumerate(zip(sums.tolist(), scores, strict=True)):
            if ends[place]:
                token_id = found.token_ids[place]
                token_ids = (*self._outputs[found.parents[place]], token_id)
                self._finished.append(Beam(token_ids, total, score, token_id in self._end_ids))
        self._finished = sorted(self._finished, key=lambda beam: -beam.score)[:width]

    def _cannot_improve(self, length: int) -> bool:
        params = self._params
        is_full = len(self._finished) == params.width
        if is_full and params.early_stopping is True:
            return True
        is_patient = params.early_stopping == "never" and params.length_penalty > 0.0
        best_length = self._max_tokens if is_patient else length
        best = float(self._scores[0] / best_length**params.length_penalty)
        return best <= (self._finished[-1].score if is_full else NEVER)
