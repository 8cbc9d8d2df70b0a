"""A body of /v1/chat/completions as a generation."""

from collections.abc import Mapping
from typing import Any

from octavo.router.http.asked import Asked, read_shared, want_logprobs
from octavo.router.http.fields import Fields, object_
from octavo.router.http.sampling import refuse_others
from octavo.rpc.errors import InvalidRequest
from octavo.rpc.openai_chat import ChatFields, chat_messages
from octavo.text.chat import ChatError

# An answer ends by itself: without max_tokens it may fill the context, as in the OpenAI API.
DEFAULT_MAX_TOKENS = 2**31 - 1
_CHOICES = ("auto", "none", "required")
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "echo": (False,),
    "add_special_tokens": (False,),
    "modalities": (["text"],),
    "include_reasoning": (True,),
    "documents": ([],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}


def read_chat(members: dict[str, Any], request_id: str, *, takes_parts: bool) -> Asked:
    """Read a body.

    takes_parts: whether the model's chat template takes content in parts; for others texts of
    several parts are joined by line ends.

    Raises:
        InvalidRequest, Unsupported: naming the member.
    """
    fields = Fields(members)
    limit = fields.integer("max_completion_tokens")
    old_limit = members.get("max_tokens")
    if limit is not None and old_limit not in (None, limit):
        raise InvalidRequest(
            "max_tokens", f"max_tokens {old_limit} and max_completion_tokens {limit} disagree"
        )
    asked, request = read_shared(fields, request_id)
    if limit is not None:
        if limit < 1:
            raise InvalidRequest(
                "max_completion_tokens", f"max_completion_tokens must be 1 or more, got {limit}"
            )
        request.sampling.max_tokens = min(limit, 2**32 - 1)
    _read_logprobs(fields, asked)
    if fields.flag("parallel_tool_calls") is False:
        asked.max_tool_calls = 1
    messages = _messages(fields.value("messages"), takes_parts)
    chat = _chat_fields(fields)
    refuse_others(fields, NEUTRAL)
    try:
        request.chat.CopyFrom(chat_messages(messages, chat))
    except ChatError as error:
        raise InvalidRequest(error.field, str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidRequest("messages", "messages hold half a surrogate pair") from error
    return asked


def _read_logprobs(fields: Fields, asked: Asked) -> None:
    wanted, num_top = fields.flag("logprobs"), fields.integer("top_logprobs")
    if wanted:
        want_logprobs(asked.requests[0], num_top or 0)
    elif num_top:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs to be true")


def _messages(messages: object, takes_parts: bool) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "messages must be a list of at least 1 message")
    found = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{index}]", f"messages[{index}] must be an object")
        content = message.get("content")
        if not takes_parts and isinstance(content, list):
            parts = [part.get("text") if _is_text(part) else None for part in content]
            texts = [part for part in parts if isinstance(part, str)]
            if len(texts) == len(content):
                message = message | {"content": "\n".join(texts)}
        found.append(message)
    return found


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _chat_fields(fields: Fields) -> ChatFields:
    chat = ChatFields()
    tools = fields.take("tools", _objects, "a list of objects")
    if tools is not None:
        chat["tools"] = tools
    choice = fields.value("tool_choice")
    if choice is not None:
        chat["tool_choice"] = _tool_choice(choice)
    add_prompt = fields.flag("add_generation_prompt")
    if add_prompt is not None:
        chat["add_generation_prompt"] = add_prompt
    goes_on = fields.flag("continue_final_message")
    if goes_on is not None:
        chat["continue_final_message"] = goes_on
    variables = fields.object("chat_template_kwargs")
    if variables is not None:
        chat["chat_template_kwargs"] = variables
    return chat


def _tool_choice(choice: object) -> str | dict[str, Any]:
    if isinstance(choice, str) and choice in _CHOICES:
        return choice
    if isinstance(choice, dict):
        function = choice.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return choice
    raise InvalidRequest(
        "tool_choice",
        f"tool_choice must be {', '.join(_CHOICES)} or "
        '{"type": "function", "function": {"name": ...}}',
    )


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise TypeError
    return [object_(item) for item in value]
