"""SamplingParams to and from protobuf, for router and workers alike."""

from typing import Literal

from octavo.inference.v1 import inference_pb2
from octavo.rpc.errors import InvalidRequest, Unsupported
from octavo.sampling_params import BeamSearch, SamplingParams

_SCALARS = frozenset(
    {
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
        "n",
        "best_of",
        "prompt_lookup",
        "json_schema",
        "regex",
        "ebnf_grammar",
        "json_object",
    }
)
_LISTS = frozenset({"stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias"})
_STOPPING: dict[inference_pb2.EarlyStopping, bool | Literal["never"]] = {
    inference_pb2.EARLY_STOPPING_HEURISTIC: False,
    inference_pb2.EARLY_STOPPING_FULL: True,
    inference_pb2.EARLY_STOPPING_NEVER: "never",
}
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
    values: dict[str, object] = dict(defaults or {})
    for field, value in message.ListFields():  # those that are set: a few of many
        name = field.name
        if name in _SCALARS or name in _LISTS:
            values[name] = value
        elif name == "bad_words_ids":
            values[name] = [word.ids for word in value]
        elif name == "beam_search":
            values[name] = _beams_from_proto(value)
        elif name == "choice":
            if not value.values:
                raise InvalidRequest("sampling.choice", "sampling.choice must have 1 text or more")
            values[name] = tuple(value.values)
        else:
            raise Unsupported(f"sampling.{name}")
    if output is not None:
        values["include_stop_text"] = output.include_stop_text
        for name in ("skip_special_tokens", "logprobs", "prompt_logprobs"):
            if output.HasField(name):
                values[name] = getattr(output, name)
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise invalid_sampling(error) from error


def _beams_from_proto(message: inference_pb2.BeamSearch) -> BeamSearch:
    penalty = message.length_penalty if message.HasField("length_penalty") else 1.0
    if message.early_stopping not in inference_pb2.EarlyStopping.values():
        last = max(inference_pb2.EarlyStopping.values())
        field = "sampling.beam_search.early_stopping"
        raise InvalidRequest(field, f"{field} must be 0 to {last}, got {message.early_stopping}")
    try:
        return BeamSearch(message.width, penalty, _STOPPING.get(message.early_stopping, False))
    except ValueError as error:
        raise invalid_sampling(error) from error


def beams_to_proto(beams: BeamSearch) -> inference_pb2.BeamSearch:
    stopping = next(kind for kind, value in _STOPPING.items() if value == beams.early_stopping)
    return inference_pb2.BeamSearch(
        width=beams.width, length_penalty=beams.length_penalty, early_stopping=stopping
    )


def sampling_to_proto(params: SamplingParams) -> inference_pb2.SamplingParams:
    """Write every scalar, so that no default is left to the reader; texts stay behind.

    best_of has become n: who samples does not choose.
    """
    message = inference_pb2.SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
        allowed_token_ids=params.allowed_token_ids,
        n=params.num_samples,
        prompt_lookup=params.prompt_lookup,
    )
    if params.logit_bias:
        message.logit_bias.update(params.logit_bias)
    for token_ids in params.bad_words_ids:
        message.bad_words_ids.add(ids=token_ids)
    if params.beam_search is not None:
        message.beam_search.CopyFrom(beams_to_proto(params.beam_search))
    set_constraint(message, params)
    return message


def set_constraint(message: inference_pb2.SamplingParams, params: SamplingParams) -> None:
    """Write the one that is set, if any."""
    constraint = params.constraint
    if constraint is None:
        return
    if constraint.field == "choice":
        message.choice.values.extend(params.choice)
    elif constraint.field == "json_object":
        message.json_object = True
    else:
        setattr(message, constraint.field, constraint.text)


def output_to_proto(params: SamplingParams) -> inference_pb2.OutputOptions | None:
    """What a worker has to know of the output options; None if that is nothing."""
    logprobs = params.computed_logprobs
    if logprobs is None and params.prompt_logprobs is None:
        return None
    return inference_pb2.OutputOptions(logprobs=logprobs, prompt_logprobs=params.prompt_logprobs)


def invalid_sampling(error: ValueError) -> InvalidRequest:
    """What SamplingParams refused, as the caller knows the field: the message begins with it."""
    name = str(error).split()[0]
    part = "output" if name in _OUTPUT_SCALARS else "sampling"
    return InvalidRequest(f"{part}.{name}", f"{part}.{error}")
