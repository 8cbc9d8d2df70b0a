"""How models write tool calls, and what one says.

hermes       <tool_call>{"name": "f", "arguments": {...}}</tool_call>    Hermes, Qwen
llama3_json  {"name": "f", "parameters": {...}}; {...}                   Llama 3.1 and later,
             with or without <|python_tag|> before it
"""

import secrets
from dataclasses import dataclass, field

from octavo.text.json_object import as_written, read_members, read_object

MAX_CALL_NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; answer it with a message of role "tool"."""

    id: str  # drawn here, unique
    name: str
    arguments: str  # a JSON object, as the model wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallFormat:
    """Where calls stand in an output."""

    name: str
    opener: str  # announces a call
    closer: str = ""  # follows its JSON
    separators: str = ""  # what may stand between two calls besides white space
    # Whether an output may begin with a call's JSON itself. Such an object is a call only if it has
    # arguments and names one of the request's tools: a JSON answer looks much alike.
    is_bare: bool = False
    # How a grammar writes calls, which is how models are taught to.
    arguments_key: str = "arguments"
    separator: str = "\n"  # between two calls
    padding: str = ""  # around a call's JSON

    @property
    def written_opener(self) -> str:
        """What a grammar puts before a call."""
        return "" if self.is_bare else self.opener

    @property
    def markers(self) -> tuple[str, ...]:
        """Text that belongs to the format; special tokens of this text must not be hidden."""
        return (self.opener, self.closer) if self.closer else (self.opener,)


HERMES = ToolCallFormat(name="hermes", opener="<tool_call>", closer="</tool_call>", padding="\n")
LLAMA3_JSON = ToolCallFormat(
    name="llama3_json",
    opener="<|python_tag|>",
    separators=";,",
    is_bare=True,
    arguments_key="parameters",
    separator="; ",
)
FORMATS = {format.name: format for format in (HERMES, LLAMA3_JSON)}
AUTO, NONE = "auto", "none"
# In templates that put something else between the same markers (Qwen3-Coder, GLM-4.5, MiniMax).
_OTHER_FORMATS = ("<function=", "<arg_key>", "<invoke", "<tool_calls>")


def check_format_name(name: str) -> None:
    """Raise ValueError unless the name can be given to `choose_format`."""
    names = (AUTO, *FORMATS, NONE)
    if name not in names:
        raise ValueError(f"tool_call_format must be one of {', '.join(names)}, got {name!r}")


def choose_format(name: str, chat_template: str) -> ToolCallFormat | None:
    """The format of that name; of "auto" the one that a model's chat template teaches it."""
    if name != AUTO:
        return FORMATS.get(name)
    if any(mark in chat_template for mark in _OTHER_FORMATS):
        return None
    if HERMES.opener in chat_template:
        return HERMES
    is_llama = "<|start_header_id|>" in chat_template and '"parameters"' in chat_template
    return LLAMA3_JSON if is_llama or LLAMA3_JSON.opener in chat_template else None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request lets its model call."""

    format: ToolCallFormat
    tool_names: frozenset[str] = field(default_factory=frozenset)

    def read_call(self, text: str, is_marked: bool) -> ToolCall | None:
        """The call that an object says; None if it is no call.

        is_marked: a marker announced the call, so that its tool may have any name.
        """
        try:
            members = read_members(text)
        except ValueError:
            return None
        name, _ = members.get("name", (None, ""))
        if not isinstance(name, str) or not _is_name(name):
            return None
        if not is_marked and name not in self.tool_names:
            return None
        arguments = _arguments(members, is_marked)
        return None if arguments is None else ToolCall(_new_id(), name, arguments)


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= MAX_CALL_NAME_CHARACTERS and text.isprintable()


def _arguments(members: dict[str, tuple[object, str]], may_lack: bool) -> str | None:
    """The arguments as JSON; None if they are no object."""
    for key in ("arguments", "parameters"):
        if key in members:
            value, source = members[key]
            if isinstance(value, str):  # JSON in a string, as API clients know it
                return value if _is_object(value) else None
            return as_written(value, source) if isinstance(value, dict) else None
    return "{}" if may_lack else None


def _is_object(text: str) -> bool:
    try:
        read_object(text)
        text.encode()  # half a surrogate pair cannot be sent
    except ValueError:
        return False
    return True


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
