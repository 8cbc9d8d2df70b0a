"""TokenLogprobs to and from protobuf."""

from octavo.inference.v1 import inference_pb2
from octavo.token_logprobs import TokenLogprobs


def logprobs_to_proto(logprobs: TokenLogprobs) -> inference_pb2.TokenLogprobs:
    return inference_pb2.TokenLogprobs(
        logprobs=logprobs.logprobs,
        num_top=logprobs.num_top,
        top_token_ids=logprobs.top_token_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def logprobs_from_proto(message: inference_pb2.TokenLogprobs) -> TokenLogprobs:
    """Read a message.

    Raises:
        ValueError: its arrays do not fit together.
    """
    num_top = len(message.logprobs) * message.num_top
    if not len(message.top_token_ids) == len(message.top_logprobs) == num_top:
        raise ValueError(
            f"{len(message.logprobs)} tokens with {message.num_top} likeliest each came with "
            f"{len(message.top_token_ids)} ids and {len(message.top_logprobs)} values"
        )
    return TokenLogprobs(
        tuple(message.logprobs),
        message.num_top,
        tuple(message.top_token_ids),
        tuple(message.top_logprobs),
    )
