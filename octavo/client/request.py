"""Builds request messages from what callers write: text, chat or token ids, and keywords."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from octavo.grammar.constraint import FIELDS
from octavo.inference.v1 import inference_pb2 as pb
from octavo.rpc.openai_chat import CHAT_FIELDS, ChatFields, chat_messages
from octavo.rpc.sampling import beams_to_proto, set_constraint
from octavo.sampling_params import BeamSearch, SamplingParams
from octavo.text.chat import Message

# Text, chat messages as the OpenAI API has them, or token ids.
Prompt = str | Sequence[Message] | Sequence[int]


class SamplingFields(TypedDict, total=False):
    """Fields of `SamplingParams`; what is left out takes the model's default."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    bad_words: str | Sequence[str]
    bad_words_ids: Sequence[Sequence[int]]
    allowed_token_ids: Sequence[int]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_text: bool
    skip_special_tokens: bool
    logprobs: int | None
    prompt_logprobs: int | None
    n: int
    best_of: int | None
    beam_search: BeamSearch | None
    prompt_lookup: bool | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    ebnf_grammar: str | None
    choice: Sequence[str]
    json_object: bool


class RequestFields(SamplingFields, ChatFields, total=False):
    """Keywords of `generate` and `stream`."""

    model: str  # default: the only one served
    request_id: str
    cache_salt: str
    lora_adapter: str  # name of a loaded LoRA adapter; default: the model as it is
    add_special_tokens: bool  # of a text prompt; default true
    echo: bool  # the completion has the prompt


_SAMPLING_FIELDS = frozenset(SamplingFields.__annotations__)
_REQUEST_FIELDS = frozenset(RequestFields.__annotations__) - _SAMPLING_FIELDS - CHAT_FIELDS
_OUTPUT_FIELDS = frozenset(
    {"include_stop_text", "skip_special_tokens", "logprobs", "prompt_logprobs"}
)


def generate_request(
    prompt: Prompt, params: SamplingParams | None, fields: RequestFields
) -> pb.GenerateRequest:
    """Build a request; with `params` every value is sent, with keywords only those given.

    Raises:
        ValueError: a value is out of range, or sampling is given in both ways.
        TypeError: a keyword is unknown.
    """
    given = {
        name: value
        for name, value in fields.items()
        if name not in _REQUEST_FIELDS and name not in CHAT_FIELDS
    }
    if params is None:
        params = SamplingParams(**given)  # type: ignore[arg-type]  # checks ranges, by name
        names = frozenset(given)
    elif given:
        raise ValueError(f"give SamplingParams or keywords, not both: {', '.join(sorted(given))}")
    else:
        names = _SAMPLING_FIELDS
    request = pb.GenerateRequest(sampling=pb.SamplingParams(), output=pb.OutputOptions())
    _set_prompt(request, prompt, _chat_fields(fields))
    set_constraint(request.sampling, params)
    for name in sorted(names.difference(FIELDS)):
        _set(request.output if name in _OUTPUT_FIELDS else request.sampling, name, params)
    for name in _REQUEST_FIELDS & fields.keys():
        part = request.output if name == "echo" else request
        setattr(part, name, cast(dict[str, object], fields)[name])
    return request


def tokenize_request(
    prompt: Prompt, model: str, add_special_tokens: bool, fields: ChatFields | None = None
) -> pb.TokenizeRequest:
    """Build a request to tokenize text or a chat.

    Raises:
        ValueError: the prompt is token ids already, or a part of the chat is wrong.
    """
    request = pb.TokenizeRequest(model=model, add_special_tokens=add_special_tokens)
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise ValueError("only text and chat messages can be tokenized, got token ids")
    _set_prompt(request, prompt, fields or {})
    return request


def _set(message: pb.SamplingParams | pb.OutputOptions, name: str, params: SamplingParams) -> None:
    value = getattr(params, name)
    if name == "logit_bias":
        cast(pb.SamplingParams, message).logit_bias.update(value)
    elif name == "bad_words_ids":
        for token_ids in value:
            cast(pb.SamplingParams, message).bad_words_ids.add(ids=token_ids)
    elif isinstance(value, BeamSearch):
        cast(pb.SamplingParams, message).beam_search.CopyFrom(beams_to_proto(value))
    elif isinstance(value, tuple):
        getattr(message, name).extend(value)
    elif value is not None:
        setattr(message, name, value)


def _chat_fields(fields: RequestFields) -> ChatFields:
    chosen = {name: value for name, value in fields.items() if name in CHAT_FIELDS}
    return cast(ChatFields, chosen)


def _set_prompt(
    request: pb.GenerateRequest | pb.TokenizeRequest, prompt: Prompt, fields: ChatFields
) -> None:
    if fields and not _is_chat(prompt):
        raise ValueError(f"only chats have {', '.join(sorted(fields))}")
    if isinstance(prompt, str):
        request.text = prompt
    elif _is_chat(prompt):
        request.chat.CopyFrom(chat_messages(cast(Sequence[Message], prompt), fields))
    elif isinstance(request, pb.GenerateRequest):
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(cast(Sequence[int], prompt))


def _is_chat(prompt: Prompt) -> bool:
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)
