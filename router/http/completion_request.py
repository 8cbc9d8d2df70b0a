"""A body of /v1/completions as generations."""

from collections.abc import Mapping
from typing import Any

from octavo.inference.v1.inference_pb2 import GenerateRequest
from octavo.router.http.asked import Asked, read_shared, want_logprobs
from octavo.router.http.fields import Fields, integer, text
from octavo.router.http.sampling import refuse_others, set_field
from octavo.rpc.errors import InvalidRequest

MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16  # as in the OpenAI API
NEUTRAL: Mapping[str, tuple[object, ...]] = {"suffix": ("",)}


def read_completion(members: dict[str, Any], request_id: str) -> Asked:
    """Read a body.

    Raises:
        InvalidRequest, Unsupported: naming the member.
    """
    fields = Fields(members)
    asked, request = read_shared(fields, request_id)
    prompts = _prompts(fields.value("prompt"))
    num_top = fields.integer("logprobs")
    asked.echoes = fields.flag("echo") or False
    request.output.echo |= asked.echoes
    if num_top is not None:
        want_logprobs(request, num_top)
        if asked.echoes and not request.output.HasField("prompt_logprobs"):
            request.output.prompt_logprobs = num_top
    add_special = fields.flag("add_special_tokens")
    if add_special is not None:
        request.add_special_tokens = add_special
    best_of = fields.integer("best_of")
    if best_of is not None:
        set_field(request.sampling, "best_of", best_of, "best_of")
    refuse_others(fields, NEUTRAL)
    asked.requests = [_of_prompt(request, prompt) for prompt in prompts]
    for index, each in enumerate(asked.requests if len(prompts) > 1 else ()):
        each.request_id = f"{asked.request_id}-{index}"
    return asked


def _prompts(prompt: object) -> list[str | list[int]]:
    """A text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    try:
        if isinstance(prompt, list) and prompt:
            if isinstance(prompt[0], int | float):
                return [[integer(item) for item in prompt]]
            if len(prompt) > MAX_PROMPTS:
                raise InvalidRequest(
                    "prompt", f"prompt has {len(prompt)} prompts, at most {MAX_PROMPTS}"
                )
            return [
                [integer(token_id) for token_id in item] if isinstance(item, list) else text(item)
                for item in prompt
            ]
    except TypeError:
        pass
    raise InvalidRequest(
        "prompt", "prompt must be a string, a list of token ids, or a list of one of these"
    )


def _of_prompt(shared: GenerateRequest, prompt: str | list[int]) -> GenerateRequest:
    request = GenerateRequest()
    request.CopyFrom(shared)
    if isinstance(prompt, str):
        request.text = prompt
        return request
    request.token_ids.SetInParent()
    try:
        request.token_ids.ids.extend(prompt)
    except ValueError as error:
        raise InvalidRequest("prompt", f"prompt has a token id out of range: {error}") from error
    return request
