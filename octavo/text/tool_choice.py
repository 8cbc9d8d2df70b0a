"""Which tools a caller wants called, in the shape of the OpenAI API."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.text.chat import Tool, template_tools

# "auto", "none", "required", or {"type": "function", "function": {"name": ...}}
ToolChoice = str | Mapping[str, Any]
CHOICES = ("auto", "none", "required")


def chosen_name(choice: ToolChoice) -> str | None:
    """The one tool to call, if the choice names one.

    Raises:
        ValueError: it is no choice.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            return name
    elif choice in CHOICES:
        return None
    raise ValueError(f"tool_choice must be one of {', '.join(CHOICES)} or name one, got {choice!r}")


def forced_functions(tools: Sequence[Tool], choice: ToolChoice) -> list[dict[str, Any]]:
    """The functions of which an output must be calls; none if it need not.

    Raises:
        ValueError: there are no tools to call, or not the one that is named.
    """
    name = chosen_name(choice)
    if name is None and choice != "required":
        return []
    functions = [tool["function"] for tool in template_tools(tools)]
    chosen = [function for function in functions if name in (None, function["name"])]
    if not chosen:
        raise ValueError(f"tool_choice {choice!r} needs tools, and the one it names among them")
    return chosen
