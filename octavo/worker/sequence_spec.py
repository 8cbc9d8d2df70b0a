"""SequenceSpec from the wire, checked at the worker's edge: routers are not its only callers."""

from dataclasses import dataclass, field

from octavo.block_key import GROUP_KEY_BYTES
from octavo.engine.adapter import Adapter
from octavo.engine.adapters import Adapters
from octavo.engine.errors import UnknownAdapter
from octavo.internal.v1alpha1 import worker_pb2
from octavo.prompt_limits import check_length, check_prompt, check_prompt_logprobs
from octavo.rpc.errors import InvalidRequest, NotFound
from octavo.rpc.sampling import invalid_sampling, sampling_from_proto
from octavo.sampling_params import SamplingParams
from octavo.transfer.request_key import RequestKey


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What a worker can run."""

    vocab_size: int
    max_prompt_context_tokens: int  # prompt and at least one more token
    max_context_tokens: int  # prompt and max_tokens
    eos_token_ids: frozenset[int] = frozenset()
    adapters: Adapters = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One sequence to run; every token that is given counts as known, outputs included."""

    key: RequestKey
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling: SamplingParams
    group_key: bytes
    adapter: Adapter | None = None

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids


def read_sequence(message: worker_pb2.SequenceSpec, limits: InputLimits) -> SequenceSpec:
    """Check every field.

    Raises:
        InvalidRequest, Unsupported: names the field and the limit.
        NotFound: the adapter is not loaded here.
    """
    key = RequestKey.from_proto(message.key, "sequence.key")
    if len(message.group_key) != GROUP_KEY_BYTES:
        raise InvalidRequest(
            "sequence.group_key",
            f"sequence.group_key must have {GROUP_KEY_BYTES} bytes, got {len(message.group_key)}",
        )
    sampling = sampling_from_proto(message.sampling, message.output)
    if sampling.seed is None and sampling.beam_search is None:
        raise InvalidRequest("sequence.sampling.seed", "sequence.sampling.seed must be set")
    try:
        sampling.check_vocabulary(limits.vocab_size, limits.eos_token_ids)
    except ValueError as error:
        raise invalid_sampling(error) from error
    spec = SequenceSpec(
        key,
        list(message.prompt_token_ids),
        list(message.output_token_ids),
        sampling,
        message.group_key,
        find_adapter(message.adapter, limits.adapters) if message.HasField("adapter") else None,
    )
    _check(spec, limits)
    return spec


def find_adapter(ref: worker_pb2.AdapterRef, adapters: Adapters) -> Adapter:
    """Raise NotFound unless just these weights are loaded here under that name."""
    try:
        adapter = adapters.named(ref.name)
    except UnknownAdapter as error:
        raise NotFound(str(error), field="lora_adapter") from error
    if adapter.fingerprint != ref.fingerprint:
        raise NotFound(f"adapter {ref.name!r} has other weights here", field="lora_adapter")
    return adapter


def _check(spec: SequenceSpec, limits: InputLimits) -> None:
    num_prompt, sampling = len(spec.prompt_token_ids), spec.sampling
    field = "sequence.prompt_token_ids"
    try:
        check_prompt(spec.prompt_token_ids, limits.vocab_size, limits.max_prompt_context_tokens)
        field = "sequence.sampling.max_tokens"
        check_length(num_prompt, sampling.max_tokens, limits.max_context_tokens)
        field = "sequence.sampling.bad_words"
        if sampling.bad_words:
            raise ValueError("must have become bad_words_ids; workers have no tokenizer")
        field = "sequence.output.prompt_logprobs"
        check_prompt_logprobs(num_prompt, sampling.prompt_logprobs)
        field = "sequence.output_token_ids"
        if len(spec.output_token_ids) >= sampling.max_tokens:
            raise ValueError(
                f"{len(spec.output_token_ids)} output tokens are given, "
                f"max_tokens is {sampling.max_tokens}"
            )
        if spec.output_token_ids and sampling.num_rows > 1:
            raise ValueError("samples of an earlier attempt go on alone, beams start again")
        check_prompt(spec.token_ids, limits.vocab_size, limits.max_prompt_context_tokens)
    except ValueError as error:
        raise InvalidRequest(field, f"{field}: {error}") from error
