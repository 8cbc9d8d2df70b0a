"""Chats of the public API: a message in, token ids and what the model may call out.

ChatMessages --event loop--> check_chat, tools_of
             --tokenizer thread--> encode_chat --> token ids
"""

from typing import Any

from octavo.inference.v1.inference_pb2 import (
    TOOL_CHOICE_NONE,
    TOOL_CHOICE_REQUIRED,
    ChatMessage,
    ChatMessages,
    Tool,
    ToolChoice,
)
from octavo.rpc.errors import InvalidRequest
from octavo.text.chat import ChatError, template_tools
from octavo.text.json_object import read_object
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_calls import ToolCallFormat, ToolUse

# Where the public API's fields have other names than the OpenAI shape, in which chats are checked.
_FIELD_NAMES = {"parameters": "parameters_json", "arguments": "arguments_json"}


def check_chat(chat: ChatMessages) -> None:
    """Check what needs no tokenizer.

    Raises:
        InvalidRequest: naming the field.
    """
    if chat.tool_choice not in ToolChoice.values():
        last = max(ToolChoice.values())
        raise InvalidRequest(
            "chat.tool_choice", f"chat.tool_choice must be 0 to {last}, got {chat.tool_choice}"
        )
    _check_forced_calls(chat)
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequest(
            "chat.add_generation_prompt",
            "chat.add_generation_prompt must not be true beside continue_final_message",
        )
    for i, message in enumerate(chat.messages):
        if message.content and message.content_parts:
            field = f"chat.messages[{i}].content_parts"
            raise InvalidRequest(field, f"{field} must be empty where content is set")


def _check_forced_calls(chat: ChatMessages) -> None:
    if chat.tool_choice == TOOL_CHOICE_REQUIRED and not chat.tools:
        raise InvalidRequest(
            "chat.tool_choice", "chat.tool_choice must not be TOOL_CHOICE_REQUIRED without tools"
        )
    name, field = chat.tool_choice_name, "chat.tool_choice_name"
    if name and chat.tool_choice == TOOL_CHOICE_NONE:
        raise InvalidRequest(field, f"{field} must be empty beside TOOL_CHOICE_NONE")
    if name and name not in {tool.name for tool in chat.tools}:
        raise InvalidRequest(field, f"{field} must be the name of a tool, got {name[:200]!r}")


def forced_functions(chat: ChatMessages) -> list[dict[str, Any]]:
    """The functions of which the output must be calls; none if it need not.

    Raises:
        ChatError: a tool is wrong; `encode_chat` finds it, too.
    """
    if chat.tool_choice != TOOL_CHOICE_REQUIRED and not chat.tool_choice_name:
        return []
    name = chat.tool_choice_name
    chosen = [_tool(tool) for tool in chat.tools if name in ("", tool.name)]
    return [tool["function"] for tool in template_tools(chosen)]


def tools_of(chat: ChatMessages, format: ToolCallFormat | None) -> ToolUse | None:
    """What to look for in the output; None where it is text alone."""
    if format is None or not _offered_tools(chat):
        return None
    return ToolUse(format, frozenset(tool.name for tool in chat.tools))


def encode_chat(tokenizer: Tokenizer, chat: ChatMessages) -> list[int]:
    """Render the chat template and encode it.

    Raises:
        InvalidRequest: a part of the chat is wrong; it names the field.
        ValueError: the template refused the chat.
    """
    try:
        return tokenizer.encode_chat(
            [_message(message) for message in chat.messages],
            not chat.HasField("add_generation_prompt") or chat.add_generation_prompt,
            tools=[_tool(tool) for tool in _offered_tools(chat)],
            continue_final_message=chat.continue_final_message,
            chat_template_kwargs=_variables(chat.chat_template_kwargs_json),
        )
    except ChatError as error:
        field = _public_field(error.field)
        raise InvalidRequest(field, f"{field} {error.problem}") from error


def _offered_tools(chat: ChatMessages) -> list[Tool]:
    return [] if chat.tool_choice == TOOL_CHOICE_NONE else list(chat.tools)


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.content_parts:
        made["content"] = [
            {"type": part.WhichOneof("part"), "text": part.text} for part in message.content_parts
        ]
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return made | {"tool_call_id": message.tool_call_id, "name": message.name}


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters_json,
    }


def _variables(source: str) -> dict[str, object]:
    try:
        return read_object(source) if source else {}
    except ValueError as error:
        raise ChatError("chat_template_kwargs_json", str(error)) from error


def _public_field(field: str) -> str:
    """The field's path in a request."""
    path, _, last = f"chat.{field}".rpartition(".")
    return f"{path}.{_FIELD_NAMES.get(last, last).replace('content[', 'content_parts[')}"
