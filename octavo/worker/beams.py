"""Beams on the wire: the first candidates from one worker to the other, results to the router."""

import torch

from octavo.engine.beam_state import Beam, BeamCandidates
from octavo.engine.sequence import FinishReason
from octavo.internal.v1alpha1 import worker_pb2
from octavo.worker.token_delta import token_delta


def candidates_to_proto(found: BeamCandidates) -> worker_pb2.BeamCandidates:
    return worker_pb2.BeamCandidates(token_ids=found.token_ids, scores=found.scores.tolist())


def candidates_from_proto(message: worker_pb2.BeamCandidates) -> BeamCandidates:
    """Those of a search's first step, where every beam is the prompt."""
    scores = torch.tensor(list(message.scores), dtype=torch.float32)
    return BeamCandidates(scores, [0] * len(scores), list(message.token_ids))


def beam_delta(index: int, beam: Beam) -> worker_pb2.TokenDelta:
    """A whole beam."""
    reason = FinishReason.STOP if beam.has_stopped else FinishReason.LENGTH
    delta = token_delta(0, beam.token_ids, reason, sample=index)
    delta.cumulative_logprob = beam.cumulative_logprob
    delta.score = beam.score
    return delta
