"""What one HTTP request asks for: generations, and how they are to be told."""

import secrets
from dataclasses import dataclass

from octavo.inference.v1.inference_pb2 import GenerateRequest
from octavo.router.http.fields import Fields
from octavo.router.http.sampling import set_sampling
from octavo.rpc.errors import InvalidRequest, Unsupported


@dataclass(slots=True, kw_only=True)
class Asked:
    """One completion or chat completion; of several prompts each is a generation of its own."""

    request_id: str
    requests: list[GenerateRequest]
    num_choices: int  # of each
    is_stream: bool = False
    include_usage: bool = False  # in a stream, as its last event
    echoes: bool = False  # the text begins with the prompt's
    include_token_ids: bool = False
    shows_tokens_as_ids: bool = False  # in log-probabilities
    max_tool_calls: int | None = None  # None: any number


def read_shared(fields: Fields, request_id: str) -> tuple[Asked, GenerateRequest]:
    """Take what both kinds of request share into the one request that is there so far.

    request_id: of the HTTP header, empty for none.

    Raises:
        InvalidRequest, Unsupported: naming the member.
    """
    request = GenerateRequest(model=fields.text("model") or "")
    set_sampling(fields, request)
    own_id = fields.text("request_id") or request_id
    if not (own_id.isascii() and own_id.isprintable()):
        raise InvalidRequest("request_id", "request_id must be printable ASCII")
    asked = Asked(
        request_id=own_id or secrets.token_hex(16),
        requests=[request],
        num_choices=request.sampling.n or 1,
        is_stream=fields.flag("stream") or False,
        include_token_ids=fields.flag("return_token_ids") or False,
        shows_tokens_as_ids=fields.flag("return_tokens_as_token_ids") or False,
    )
    request.request_id = asked.request_id
    request.output.include_token_ids = asked.include_token_ids
    request.output.echo = asked.include_token_ids  # those of the prompt, too
    _read_stream_options(fields.inner("stream_options"), asked)
    if asked.is_stream and request.output.HasField("prompt_logprobs"):
        raise InvalidRequest("prompt_logprobs", "prompt_logprobs are told without stream only")
    return asked, request


def want_logprobs(request: GenerateRequest, num_top: int) -> None:
    """Ask for log-probabilities; they are told with the tokens that they are of."""
    request.output.include_token_ids = True
    try:
        request.output.logprobs = num_top
    except ValueError as error:
        raise InvalidRequest("logprobs", f"logprobs must be 0 to 20, got {num_top}") from error


def _read_stream_options(options: Fields | None, asked: Asked) -> None:
    if options is None:
        return
    if not asked.is_stream:
        raise InvalidRequest("stream_options", "stream_options needs stream to be true")
    asked.include_usage = options.flag("include_usage") or False
    if options.flag("continuous_usage_stats"):
        raise Unsupported("stream_options.continuous_usage_stats")
    options.flag("include_obfuscation")  # padding against eavesdroppers; this service sends none
    options.check_all_taken()
