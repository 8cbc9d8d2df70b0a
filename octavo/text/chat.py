"""A chat as callers write it, checked, and made into what chat templates take.

The shape is that of the OpenAI API, with JSON in strings where that API has it:

    {"role": "assistant", "content": "",
     "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "content": "2"}

Templates get the same with arguments and parameters as mappings, in the order they are written in:
the prompt's text, and so its cached blocks, depend on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.text.json_object import read_object

MAX_TOOLS = 128
MAX_TOOL_NAME_BYTES = 128
NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}

Message = Mapping[str, Any]  # as callers write it
Tool = Mapping[str, Any]  # {"type": "function", "function": {...}}, or the inner mapping alone

_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters"})


class ChatError(ValueError):
    """A part of a chat is wrong; the message begins with the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a template; content is always there, "" where a caller has none.

    Raises:
        ChatError: naming the message and its field.
    """
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools for a template.

    Raises:
        ChatError: naming the tool and its field.
    """
    if len(tools) > MAX_TOOLS:
        raise ChatError("tools", f"has {len(tools)} tools, at most {MAX_TOOLS}")
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    names = [function["name"] for function in functions]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ChatError(f"tools[{i}].name", f"{name!r} is taken by an earlier tool")
    return [{"type": "function", "function": function} for function in functions]


def tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    """The names of tools that `template_tools` accepts."""
    return frozenset(str(tool.get("function", tool)["name"]) for tool in tools)


def _message(message: Message, field: str) -> dict[str, Any]:
    _check_keys(message, _MESSAGE_KEYS, field)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatError(f"{field}.role", "must be a string with at least 1 character")
    made: dict[str, Any] = {"role": role, "content": _content(message.get("content"), field)}
    for key in ("name", "tool_call_id"):
        value = message.get(key)
        if value is not None and not isinstance(value, str):
            raise ChatError(f"{field}.{key}", f"must be a string, got {type(value).__name__}")
        if value:
            made[key] = value
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant":
            raise ChatError(f"{field}.tool_calls", f'is for the role "assistant", got {role!r}')
        made["tool_calls"] = [
            _call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return made


def _content(content: object, field: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ChatError(f"{field}.content", "must be a string or a list of parts")
    parts: list[dict[str, str]] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if kind == "text" else None
        if not isinstance(text, str):
            raise ChatError(f"{field}.content[{i}]", 'must be {"type": "text", "text": ...}')
        parts.append({"type": "text", "text": text})
    return parts


def _call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ChatError(f"{field}.name", "must be a string with at least 1 character")
    arguments = function.get("arguments") or {}
    made: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": _object(arguments, f"{field}.arguments")},
    }
    if call.get("id"):
        made["id"] = str(call["id"])
    return made


def _function(tool: Tool, field: str) -> dict[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise ChatError(field, 'must be {"type": "function", "function": {...}}')
    given = {key: value for key, value in function.items() if key != "type"}
    if not given.get("strict"):
        given.pop("strict", None)
    _check_keys(given, _FUNCTION_KEYS, field)
    name = given.get("name")
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= MAX_TOOL_NAME_BYTES:
        raise ChatError(f"{field}.name", f"must have 1 to {MAX_TOOL_NAME_BYTES} bytes")
    made: dict[str, Any] = {"name": name}
    description = given.get("description")
    if description:
        made["description"] = str(description)
    parameters = given.get("parameters") or NO_PARAMETERS
    made["parameters"] = _object(parameters, f"{field}.parameters")
    return made


def _object(value: object, field: str) -> dict[str, Any]:
    """A mapping, or the JSON object that a string holds."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        raise ChatError(field, f"must be a JSON object, got {type(value).__name__}")
    try:
        return read_object(value)
    except ValueError as error:
        raise ChatError(field, str(error)) from error


def _check_keys(given: Mapping[str, Any], known: frozenset[str], field: str) -> None:
    unknown = sorted(str(key) for key in given.keys() - known if given[key])
    if unknown:
        raise ChatError(f"{field}.{unknown[0]}", f"is not known; known are {sorted(known)}")
