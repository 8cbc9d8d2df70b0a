"""A call of a tool that a model asks for."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from octavo.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Answer it with {"role": "tool", "tool_call_id": call.id, "content": result}."""

    id: str
    name: str
    arguments_json: str  # an object, as the model wrote it; it need not follow the tool's schema

    @classmethod
    def all_of(cls, messages: Iterable[pb.ToolCall]) -> list[Self]:
        return [cls(message.id, message.name, message.arguments_json) for message in messages]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, by name."""
        arguments: dict[str, Any] = json.loads(self.arguments_json)
        return arguments

    def to_message(self) -> dict[str, Any]:
        """As it stands in an assistant message of the conversation."""
        function = {"name": self.name, "arguments": self.arguments_json}
        return {"id": self.id, "type": "function", "function": function}
