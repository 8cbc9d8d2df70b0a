"""SamplingParams to and from protobuf, for router and workers alike."""

from octavo.inference.v1 import inference_pb2
from octavo.rpc.errors import InvalidRequest, Unsupported
from octavo.sampling_params import SamplingParams

# Fields of later versions, with the values that change nothing and are therefore accepted.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "json_schema": (),
    "regex": (),
    "ebnf_grammar": (),
}
_SCALARS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
)
_LISTS = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids")
_OUTPUT_SCALARS = ("include_stop_text", "skip_special_tokens", "logprobs", "prompt_logprobs")


def sampling_from_proto(
    message: inference_pb2.SamplingParams,
    output: inference_pb2.OutputOptions | None = None,
    defaults: dict[str, float | int] | None = None,
) -> SamplingParams:
    """Read a message; unset scalars come from `defaults`, then from SamplingParams.

    Raises:
        Unsupported: a field of a later version is set.
        InvalidRequest: a value is out of range; both name the field.
    """
    for name, harmless in UNSUPPORTED.items():
        if message.HasField(name) and getattr(message, name) not in harmless:
            raise Unsupported(f"sampling.{name}")
    values: dict[str, object] = dict(defaults or {})
    values |= {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    values |= {name: tuple(found) for name in _LISTS if (found := getattr(message, name))}
    if message.logit_bias:
        values["logit_bias"] = dict(message.logit_bias)
    if message.bad_words_ids:
        values["bad_words_ids"] = tuple(tuple(word.ids) for word in message.bad_words_ids)
    if output is not None:
        values["include_stop_text"] = output.include_stop_text
        for name in ("skip_special_tokens", "logprobs", "prompt_logprobs"):
            if output.HasField(name):
                values[name] = getattr(output, name)
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise invalid_sampling(error) from error


def sampling_to_proto(params: SamplingParams) -> inference_pb2.SamplingParams:
    """Write every scalar, so that no default is left to the reader; texts stay behind."""
    message = inference_pb2.SamplingParams(stop_token_ids=params.stop_token_ids)
    for name in _SCALARS:
        value = getattr(params, name)
        if value is not None:
            setattr(message, name, value)
    if params.logit_bias:
        message.logit_bias.update(params.logit_bias)
    for token_ids in params.bad_words_ids:
        message.bad_words_ids.add(ids=token_ids)
    message.allowed_token_ids.extend(params.allowed_token_ids)
    return message


def output_to_proto(params: SamplingParams) -> inference_pb2.OutputOptions | None:
    """What a worker has to know of the output options; None if that is nothing."""
    if params.logprobs is None and params.prompt_logprobs is None:
        return None
    return inference_pb2.OutputOptions(
        logprobs=params.logprobs, prompt_logprobs=params.prompt_logprobs
    )


def invalid_sampling(error: ValueError) -> InvalidRequest:
    """What SamplingParams refused, as the caller knows the field: the message begins with it."""
    name = str(error).split()[0]
    part = "output" if name in _OUTPUT_SCALARS else "sampling"
    return InvalidRequest(f"{part}.{name}", f"{part}.{error}")
