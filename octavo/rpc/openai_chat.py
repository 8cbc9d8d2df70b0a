"""Chats and tools as callers write them, in the shape of the OpenAI API, and their messages.

[{"role": ..., "content": ..., "tool_calls": [...]}], tools=[{"type": "function", ...}]
    --> ChatMessages
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from octavo.inference.v1 import inference_pb2 as pb
from octavo.text.chat import Message, Tool, template_messages, template_tools
from octavo.text.tool_choice import ToolChoice, chosen_name


class ChatFields(TypedDict, total=False):
    """Keywords that hold for chats alone."""

    tools: Sequence[Tool]  # each {"type": "function", "function": {...}} or the inner mapping
    # "auto" (default), "none", "required" or {"type": "function", "function": {"name": ...}}
    tool_choice: ToolChoice
    add_generation_prompt: bool  # default true, or false beside continue_final_message
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]


CHAT_FIELDS = frozenset(ChatFields.__annotations__)
_CHOICES = {
    "auto": pb.TOOL_CHOICE_AUTO,
    "none": pb.TOOL_CHOICE_NONE,
    "required": pb.TOOL_CHOICE_REQUIRED,
}


def chat_messages(messages: Sequence[Message], fields: ChatFields) -> pb.ChatMessages:
    """Build the chat of a request.

    Raises:
        ValueError: a message, a tool or a field is wrong; it is named.
    """
    chat = pb.ChatMessages()
    for message in template_messages(messages):
        chat.messages.append(_message(message))
    for tool in template_tools(fields.get("tools") or ()):
        function = tool["function"]
        chat.tools.add(
            name=function["name"],
            description=function.get("description", ""),
            parameters_json=_json(function["parameters"]),
        )
    _set_choice(chat, fields.get("tool_choice", "auto"))
    if "add_generation_prompt" in fields:
        chat.add_generation_prompt = fields["add_generation_prompt"]
    chat.continue_final_message = fields.get("continue_final_message", False)
    variables = fields.get("chat_template_kwargs")
    if variables:
        chat.chat_template_kwargs_json = _json(dict(variables))
    return chat


def _message(message: Mapping[str, Any]) -> pb.ChatMessage:
    """A message that `template_messages` made."""
    content = message["content"]
    made = pb.ChatMessage(
        role=message["role"],
        tool_call_id=message.get("tool_call_id"),
        name=message.get("name"),
    )
    if isinstance(content, str):
        made.content = content
    else:
        made.content_parts.extend(pb.ContentPart(text=part["text"]) for part in content)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        made.tool_calls.add(
            id=call.get("id", ""),
            name=function["name"],
            arguments_json=_json(function["arguments"]),
        )
    return made


def _set_choice(chat: pb.ChatMessages, choice: ToolChoice) -> None:
    name = chosen_name(choice)
    if name is not None:
        chat.tool_choice_name = name
    else:
        chat.tool_choice = _CHOICES[str(choice)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
