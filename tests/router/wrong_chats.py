"""Chats that are refused, with the status and the field that is named."""

from typing import Any

import grpc

from octavo.inference.v1 import inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ASSISTANT = pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f", arguments_json="[")])
TOOL = pb.Tool(name="look", description="Looks.", parameters_json='{"type": "object", "b": 1}')
USER = pb.ChatMessage(role="user", content="How is it?")

WRONG_CHATS: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"tool_choice": pb.TOOL_CHOICE_REQUIRED, "tools": []}, INVALID, "chat.tool_choice"),
    ({"tool_choice": 99}, INVALID, "chat.tool_choice"),
    ({"tool_choice_name": "look", "tools": []}, INVALID, "chat.tool_choice_name"),
    ({"tool_choice_name": "hook"}, INVALID, "chat.tool_choice_name"),
    (
        {"tool_choice_name": "look", "tool_choice": pb.TOOL_CHOICE_NONE},
        INVALID,
        "chat.tool_choice_name",
    ),
    (
        {"add_generation_prompt": True, "continue_final_message": True},
        INVALID,
        "chat.add_generation_prompt",
    ),
    ({"tools": [pb.Tool()]}, INVALID, "chat.tools[0].name"),
    ({"tools": [TOOL, TOOL]}, INVALID, "chat.tools[1].name"),
    ({"tools": [pb.Tool(name="f")] * 129}, INVALID, "chat.tools"),
    (
        {"tools": [pb.Tool(name="f", parameters_json="1")]},
        INVALID,
        "chat.tools[0].parameters_json",
    ),
    ({"messages": [pb.ChatMessage()]}, INVALID, "chat.messages[0].role"),
    (
        {"messages": [USER, ASSISTANT]},
        INVALID,
        "chat.messages[1].tool_calls[0].arguments_json",
    ),
    (
        {"messages": [pb.ChatMessage(role="user", content_parts=[pb.ContentPart()])]},
        INVALID,
        "chat.messages[0].content_parts[0]",
    ),
    (
        {"messages": [pb.ChatMessage(role="user", content="x", content_parts=[pb.ContentPart()])]},
        INVALID,
        "chat.messages[0].content_parts",
    ),
    ({"chat_template_kwargs_json": "[]"}, INVALID, "chat.chat_template_kwargs_json"),
    ({"chat_template_kwargs_json": '{"tools": 1}'}, INVALID, "chat"),
]
