"""Tools of `octavo generate`: read from a file, their calls printed a line each."""

import json
from pathlib import Path
from typing import Any

import typer

from octavo.client import ToolCall


def read_tools(path: Path) -> list[dict[str, Any]]:
    """A JSON list of {"type": "function", "function": {...}}.

    Raises:
        typer.BadParameter: the file cannot be read, or holds something else.
    """
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise typer.BadParameter(f"{path} must hold a JSON list of objects")
    return tools


def call_lines(calls: list[ToolCall]) -> str:
    """Each call as the JSON of an assistant message, on a line of its own."""
    return "\n".join(json.dumps(call.to_message(), ensure_ascii=False) for call in calls)
