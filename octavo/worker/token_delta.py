"""New tokens of a sequence, as they go on the wire."""

from collections.abc import Sequence as Ids

from octavo.engine.sequence import FinishReason
from octavo.inference.v1 import inference_pb2
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.logprobs import logprobs_to_proto
from octavo.token_logprobs import TokenLogprobs

_FINISH_REASONS = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


def token_delta(
    first_index: int,
    token_ids: Ids[int],
    finish_reason: FinishReason | None,
    logprobs: TokenLogprobs | None = None,
    sample: int = 0,
) -> worker_pb2.TokenDelta:
    """Tokens of a sample, from output index `first_index` on."""
    return worker_pb2.TokenDelta(
        sample=sample,
        first_index=first_index,
        token_ids=token_ids,
        finish_reason=_FINISH_REASONS[finish_reason],
        logprobs=None if logprobs is None else logprobs_to_proto(logprobs),
    )


def prompt_logprobs(first_index: int, logprobs: TokenLogprobs) -> worker_pb2.PromptLogprobs:
    """Of prompt tokens from index `first_index` on."""
    return worker_pb2.PromptLogprobs(first_index=first_index, logprobs=logprobs_to_proto(logprobs))
