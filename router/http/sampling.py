"""How tokens are chosen: members of the OpenAI API, and those of vLLM beside it, in our message.

A row of a table is a member and the field it sets; ranges are checked where gRPC's are.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from octavo.inference.v1.inference_pb2 import GenerateRequest
from octavo.router.http.fields import Fields, biases, flag, integer, integers, number, text, texts
from octavo.rpc.errors import InvalidRequest, Unsupported

Kind = tuple[Callable[[Any], Any], str]
TEXT: Kind = (text, "a string")
FLAG: Kind = (flag, "true or false")
INTEGER: Kind = (integer, "an integer")
NUMBER: Kind = (number, "a number")
TEXTS: Kind = (texts, "a string or a list of strings")
INTEGERS: Kind = (integers, "a list of integers")
BIASES: Kind = (biases, "an object of token ids and numbers")

# Member -> its kind; the field has the same name.
_SAMPLING: Mapping[str, Kind] = {
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": INTEGER,
    "min_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "max_tokens": INTEGER,
    "min_tokens": INTEGER,
    "n": INTEGER,
    "ignore_eos": FLAG,
    "stop": TEXTS,
    "stop_token_ids": INTEGERS,
    "bad_words": TEXTS,
    "allowed_token_ids": INTEGERS,
    "logit_bias": BIASES,
    "prompt_lookup": FLAG,
}
_OUTPUT: Mapping[str, Kind] = {"skip_special_tokens": FLAG, "prompt_logprobs": INTEGER}
_REQUEST: Mapping[str, Kind] = {"cache_salt": TEXT, "priority": INTEGER}
# They change nothing in an answer: whose account it is, where and for how long it is kept.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
# Members of features that are not here, with what means the same as their absence.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "prompt_embeds": (),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "guided_decoding_backend": ("auto",),
    "guided_whitespace_pattern": (),
}


def set_sampling(fields: Fields, request: GenerateRequest) -> None:
    """Take everything that both kinds of request share.

    Raises:
        InvalidRequest, Unsupported: naming the member.
    """
    for table, part in (
        (_SAMPLING, request.sampling),
        (_OUTPUT, request.output),
        (_REQUEST, request),
    ):
        for name, (read, kind) in table.items():
            value = fields.take(name, read, kind)
            if value is not None:
                set_field(part, name, value, name)
    include = fields.flag("include_stop_str_in_output")
    if include is not None:
        request.output.include_stop_text = include
    seed = fields.integer("seed")
    if seed is not None:
        bits = seed + 2**64 if -(2**63) <= seed < 0 else seed  # theirs is a signed one
        set_field(request.sampling, "seed", bits, "seed")
    _set_constraint(fields, request)


def refuse_others(fields: Fields, neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Drop members that change nothing and refuse all others.

    Raises:
        InvalidRequest, Unsupported: naming the member.
    """
    fields.drop(IGNORED)
    for name, values in {**NEUTRAL, **neutral}.items():
        value = fields.value(name)
        if value is not None and value not in values:
            raise Unsupported(name)
    fields.check_all_taken()


def set_field(part: Any, name: str, value: Any, member: str) -> None:
    """Set a field of a message.

    Raises:
        InvalidRequest: an integer is larger, or less, than the field can hold.
    """
    try:
        if isinstance(value, list):
            getattr(part, name).extend(value)
        elif isinstance(value, dict):
            getattr(part, name).update(value)
        else:
            setattr(part, name, value)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidRequest(member, f"{member} is out of range: {value!r:.60}") from error


def _set_constraint(fields: Fields, request: GenerateRequest) -> None:
    """What the output must look like, in any of the ways to say it; one at most."""
    found = _response_format(fields.inner("response_format")) | _guided(fields)
    if len(found) > 1:
        raise InvalidRequest(
            "structured_outputs",
            f"structured_outputs and its like may be given once, got {', '.join(sorted(found))}",
        )
    for member, (name, value) in found.items():
        part, field = request.sampling, name
        if name == "choice":
            part, field = getattr(part, name), "values"
        set_field(part, field, value, member)


Constraints = dict[str, tuple[str, Any]]  # member -> field and value


def _response_format(format: Fields | None) -> Constraints:
    if format is None:
        return {}
    kind = format.text("type")
    match kind:
        case "text":
            return {}
        case "json_object":
            return {"response_format": ("json_object", True)}
        case "json_schema":
            described = format.inner("json_schema")
            schema = described.object("schema") if described is not None else None
            if schema is None:
                member = "response_format.json_schema.schema"
                raise InvalidRequest(member, f"{member} is required")
            return {"response_format": ("json_schema", json.dumps(schema, ensure_ascii=False))}
    raise InvalidRequest(
        "response_format.type",
        f"response_format.type must be text, json_object or json_schema, got {kind!r}",
    )


def _guided(fields: Fields) -> Constraints:
    """vLLM's members, of today (structured_outputs) and of before (guided_*)."""
    found: Constraints = {}
    inner = fields.inner("structured_outputs")
    for source, prefix in ((fields, "guided_"), (inner, "")):
        if source is None:
            continue
        path = "" if source is fields else "structured_outputs."
        schema = source.take(prefix + "json", _schema, "a JSON schema")
        if schema is not None:
            found[f"{path}{prefix}json"] = ("json_schema", schema)
        for name, field in (("regex", "regex"), ("grammar", "ebnf_grammar")):
            value = source.text(prefix + name)
            if value is not None:
                found[f"{path}{prefix}{name}"] = (field, value)
        choice = source.take(prefix + "choice", texts, "a list of strings")
        if choice is not None:
            found[f"{path}{prefix}choice"] = ("choice", choice)
        if source.flag(prefix + "json_object"):
            found[f"{path}{prefix}json_object"] = ("json_object", True)
    if inner is not None:
        for name in ("disable_any_whitespace", "whitespace_pattern", "structural_tag"):
            if inner.value(name):
                raise Unsupported(f"structured_outputs.{name}")
        inner.value("disable_fallback")  # there is one way to make grammars
        inner.check_all_taken()
    return found


def _schema(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise TypeError
    return json.dumps(value, ensure_ascii=False)
