"""A chat with a tool, its call and its result."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "zone": {"type": "string", "enum": ["öst", "\N{PARTY POPPER}"]},
        "city": {"type": "string", "minLength": 1, "maximum": 1.5},
    },
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Looks outside.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"zone": "öst", "city": "Ulm"}},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain, 5°"},
]
