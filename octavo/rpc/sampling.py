"""SamplingParams to and from protobuf, for router and workers alike."""

from octavo.inference.v1 import inference_pb2
from octavo.rpc.errors import InvalidRequest, Unsupported
from octavo.sampling_params import SamplingParams

# Fields of later versions, with the values that change nothing and are therefore accepted.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "min_tokens": (0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "n": (1,),
    "json_schema": (),
    "regex": (),
    "ebnf_grammar": (),
    "logit_bias": (),
}
_SCALARS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos")
_LISTS = ("stop", "stop_token_ids")


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
        elif value not in UNSUPPORTED[name]:
            raise Unsupported(f"sampling.{name}")
    if output is not None:
        values["include_stop_text"] = output.include_stop_text
        if output.HasField("skip_special_tokens"):
            values["skip_special_tokens"] = output.skip_special_tokens
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(f"sampling.{str(error).split()[0]}", f"sampling.{error}") from error


def sampling_to_proto(params: SamplingParams) -> inference_pb2.SamplingParams:
    """Write every scalar, so that no default is left to the reader; stop strings stay behind."""
    return inference_pb2.SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
    )
