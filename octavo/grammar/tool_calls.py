"""The grammar of an output that is nothing but tool calls, in Lark.

    start: call ("\\n" call)*
    call: call_0 | call_1
    call_0: "<tool_call>\\n{\\"name\\": \\"add\\", \\"arguments\\": " arguments_0 "}\\n</tool_call>"
    arguments_0: %json {"type": "object", "properties": {"a": {"type": "number"}}}

Every text of it is taken apart into calls by `octavo.text.tool_call_parser`. Each schema stands by
itself, so that a "$ref" in it means what it meant to its author.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.grammar.number_bounds import include_bounds
from octavo.grammar.source import JSON_DEFAULTS
from octavo.text.tool_calls import ToolCallFormat

_OPTIONS = "x-guidance"


def tool_call_grammar(
    format: ToolCallFormat,
    functions: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[int, str],
    *,
    is_one: bool,
) -> str:
    """Calls of these functions, at least one, or exactly one.

    functions: each with its name and parameters, a JSON schema.
    special_tokens: of the model, by id; a marker that is one cannot come as text.

    Raises:
        ValueError: a function cannot be called by a grammar; the message begins with its name.
    """
    ids = {text: token_id for token_id, text in special_tokens.items()}
    more = "" if is_one else f"({_literal(format.separator)} call)*"
    names = [f"call_{i}" for i in range(len(functions))]
    lines = [f"start: call {more}", f"call: {' | '.join(names)}"]
    for i, function in enumerate(functions):
        name = str(function["name"])
        if not name.isprintable():
            raise ValueError(f"{name!r} has characters that no call can have")
        key = json.dumps(format.arguments_key)
        head = f'{format.padding}{{"name": {json.dumps(name, ensure_ascii=False)}, {key}: '
        tail = "}" + format.padding
        lines += [
            f"call_{i}: {_marker(format.written_opener, ids)} {_literal(head)} arguments_{i} "
            f"{_literal(tail)} {_marker(format.closer, ids)}",
            f"arguments_{i}: %json {_object_schema(name, function['parameters'])}",
        ]
    return "\n".join(lines)


def _object_schema(name: str, parameters: Mapping[str, Any]) -> str:
    """The schema of the arguments, which are an object even where it does not say so."""
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError(f"{name!r} has parameters that are no object")
    options = {**JSON_DEFAULTS, **parameters.get(_OPTIONS, {})}
    return include_bounds(json.dumps({**parameters, "type": "object", _OPTIONS: options}))


def _marker(text: str, special_ids: Mapping[str, int]) -> str:
    if not text:
        return ""
    return f"<[{special_ids[text]}]>" if text in special_ids else _literal(text)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
