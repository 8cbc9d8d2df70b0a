"""Tool calls leave the text as messages; what is no call stays text, to the last character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.tool_call_parser import ToolCallParser, output_parser
from octavo.text.tool_calls import HERMES, LLAMA3_JSON, ToolCallFormat, ToolUse, choose_format
from text.examples import examples

TOOLS = frozenset({"f", "get_weather"})
# What stands in the output in order: text, or (name, arguments).
Parts = list[str | tuple[str, str]]


def parse(format: ToolCallFormat, pieces: list[str]) -> Parts:
    """Neighbouring texts joined."""
    parser = ToolCallParser(ToolUse(format, TOOLS))
    parts: Parts = []
    for i, piece in enumerate(pieces):
        parsed = parser.push(piece, is_last=i == len(pieces) - 1)
        assert not (parsed.text and parsed.tool_calls) or len(piece) > 1
        new: Parts = [parsed.text] if parsed.text else []
        for part in [*new, *((call.name, call.arguments) for call in parsed.tool_calls)]:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    return parts


def letters(format: ToolCallFormat, text: str) -> Parts:
    return parse(format, [*text, ""])


def hermes(name: str = "f", arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str = "f", arguments: str = "{}") -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (hermes(), [("f", "{}")]),
        (hermes("any name", '{"a": 1}'), [("any name", '{"a": 1}')]),
        ("\n\n" + hermes() + "\n", [("f", "{}")]),
        ("Let me see.\n" + hermes(), ["Let me see.\n", ("f", "{}")]),
        (hermes() + "\n" + hermes("g"), [("f", "{}"), ("g", "{}")]),
        (hermes() + hermes("g") + "done", [("f", "{}"), ("g", "{}"), "done"]),
        (hermes() + "\n and " + hermes("g"), [("f", "{}"), "\n and ", ("g", "{}")]),
        ('<tool_call>{"name":"f"}</tool_call>', [("f", "{}")]),
        ('<tool_call>{"arguments":{"x":[1]},"name":"f"}', [("f", '{"x":[1]}')]),
        ('<tool_call>{"name":"f","parameters":{}}</tool_', [("f", "{}")]),
        (hermes(arguments='"{\\"a\\": 1}"'), [("f", '{"a": 1}')]),
    ],
)
def test_hermes_calls_are_found(text: str, parts: Parts) -> None:
    assert letters(HERMES, text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (llama(), [("f", "{}")]),
        ("\n " + llama(arguments='{"a": 1}'), [("f", '{"a": 1}')]),
        ("<|python_tag|>" + llama("any"), [("any", "{}")]),
        ("<|python_tag|>" + llama("any") + "; " + llama("more"), [("any", "{}"), ("more", "{}")]),
        (llama() + ";" + llama("get_weather"), [("f", "{}"), ("get_weather", "{}")]),
        (llama() + "\n" + llama(), [("f", "{}"), ("f", "{}")]),
        (llama() + " That is it.", [("f", "{}"), " That is it."]),
        ("Well, <|python_tag|>" + llama(), ["Well, ", ("f", "{}")]),
        ('{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
        ('{"name": "f", "arguments": {"x": null}}', [("f", '{"x": null}')]),
    ],
)
def test_llama_calls_are_found(text: str, parts: Parts) -> None:
    assert letters(LLAMA3_JSON, text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Just text, 1 < 2, a <tool",
        "<tool_call>",
        "<tool_call> not JSON </tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"name": "f", "arguments": {}\n</tool_call> and on',
        '<tool_call>{"name": "f", "arguments": {}}} </tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} {} </tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        '<tool_call>{"name" "f"}</tool_call>',
        '<tool_call>["f"]</tool_call>',
        '<tool_call>{"name": "f]}</tool_call>',
        "</tool_call></tool_",
        '<tool_call>{"name": "f", "arguments": ' + "[" * 20_000,
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 9000 + "]" * 9000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 9000 + "}}</tool_call>",
    ],
)
def test_what_is_no_hermes_call_stays_text(text: str) -> None:
    assert "".join(map(str, parse(HERMES, [text]))) == text
    assert (
        "".join(map(str, parse(HERMES, [text[i : i + 7] for i in range(0, len(text), 7)] or [""])))
        == text
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42, "name": "f"}',
        '{"name": "Ada", "parameters": {}}',  # no tool of the request: an answer in JSON
        '{"name": "f"}',
        '{"name": "f", "parameters": 3}',
        '{"name": "f", "parameters": {}',
        "<|python_tag|>print(1)",
        "<|python_",
        'Take {"name": "f", "parameters": {}}',
        "  {",
        "[" + llama() + "]",
    ],
)
def test_what_is_no_llama_call_stays_text(text: str) -> None:
    assert letters(LLAMA3_JSON, text) == ([text] if text else [])


def test_a_call_after_a_broken_one_is_found() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {}</tool_call>'
    assert letters(HERMES, broken + hermes("g")) == [broken, ("g", "{}")]
    assert letters(HERMES, "<tool_call>" + hermes("g")) == ["<tool_call>", ("g", "{}")]


def test_markers_in_arguments_are_theirs() -> None:
    """A closing tag, brackets and quotes inside strings end nothing."""
    value = json.dumps({"text": '</tool_call> <tool_call>{"}] \\ "', "more": ["\\"]})
    assert letters(HERMES, hermes(arguments=value)) == [("f", value)]


def test_arguments_are_as_the_model_wrote_them() -> None:
    written = '{"b": 1.50, "a": 1e400,"n": 123456789012345678901234567890, "s": "\\u00e9é"}'
    assert letters(HERMES, hermes(arguments=written)) == [("f", written)]


def test_newlines_inside_strings_are_forgiven_and_repaired() -> None:
    [(_, arguments)] = letters(HERMES, hermes(arguments='{"code": "a\nb\tc"}'))
    assert json.loads(arguments) == {"code": "a\nb\tc"}


def test_ids_are_unique() -> None:
    parser = ToolCallParser(ToolUse(HERMES))
    calls = parser.push(hermes() * 50, is_last=True).tool_calls
    assert len({call.id for call in calls}) == parser.num_calls == 50


def test_text_comes_at_once_and_a_call_with_its_last_character() -> None:
    parser = ToolCallParser(ToolUse(HERMES))
    sent = [parser.push(letter) for letter in "I <" + hermes()]
    assert [parsed.text for parsed in sent[:4]] == ["I", " ", "", "<"]
    assert not any(parsed.tool_calls for parsed in sent[:-1])
    assert [call.name for call in sent[-1].tool_calls] == ["f"]


def test_a_json_answer_streams_once_its_first_key_is_known() -> None:
    parser = ToolCallParser(ToolUse(LLAMA3_JSON, TOOLS))
    sent = [parser.push(letter).text for letter in '{"city": "Paris"}']
    assert sent == [""] * 6 + ['{"city"', *': "Paris"}']


def test_without_tools_text_is_text() -> None:
    parser = output_parser(None)
    assert parser.push(hermes(), is_last=True).text == hermes()
    assert parser.num_calls == 0


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "_call>", "<|python_tag|>", "<|python"),
        *(hermes(), hermes("g", '{"a": "}"}'), llama(), llama("Ada"), llama("f", '{"a": [{}]}')),
        *("{", "}", '"', "\\", "[", "]", ":", ",", ";", " ", "\n", "text", "1", "true"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", ', '"parameters": {}}'),
    ]
)
ANY_FORMAT = st.sampled_from([HERMES, LLAMA3_JSON])


@examples(300)
@given(format=ANY_FORMAT, pieces=st.lists(PIECES, max_size=14), data=st.data())
def test_the_cut_into_pieces_changes_nothing(
    format: ToolCallFormat, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    cut = [text[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    by_letter = letters(format, text)
    assert flat(parse(format, cut)) == flat(by_letter)
    assert flat(parse(format, [text])) == flat(by_letter)


def flat(parts: Parts) -> tuple[str, Parts]:
    """Text and calls of one piece come beside each other."""
    texts = "".join(part for part in parts if isinstance(part, str))
    return texts, [part for part in parts if not isinstance(part, str)]


@examples(200)
@given(format=ANY_FORMAT, pieces=st.lists(PIECES, max_size=14))
def test_what_may_become_a_marker_is_held_whole(format: ToolCallFormat, pieces: list[str]) -> None:
    parser = ToolCallParser(ToolUse(format, TOOLS))
    halves = {marker[:end] for marker in format.markers for end in range(1, len(marker))}
    text = ""
    for letter in "".join(pieces):
        parser.push(letter)
        text += letter
        assert len(parser._held) >= max(
            [len(half) for half in halves if text.endswith(half)] or [0]
        )


@examples(300)
@given(format=ANY_FORMAT, pieces=st.lists(PIECES, max_size=14))
def test_nothing_but_calls_and_the_space_around_them_leaves_the_text(
    format: ToolCallFormat, pieces: list[str]
) -> None:
    text = "".join(pieces)
    position = 0
    for part in letters(format, text):
        if isinstance(part, tuple):
            position = behind_call(text, position, part, format)
            continue
        gap = len(text[position:]) - len(text[position:].lstrip(" \n;,"))
        skips = [skip for skip in range(gap + 1) if text.startswith(part, position + skip)]
        assert skips, (text, part)
        position += skips[0] + len(part)
    assert not text[position:].strip(" \n") or "</tool_call>".startswith(text[position:].strip())


def behind_call(text: str, position: int, call: tuple[str, str], format: ToolCallFormat) -> int:
    """Where the source of a call ends; only markers and space may stand before it."""
    start = text.index("{", position)
    assert not set(
        text[position:start].replace("<tool_call>", "").replace("<|python_tag|>", "")
    ) - set(" \n;,")
    value, end = json.JSONDecoder().raw_decode(text, start)
    assert value["name"] == call[0]
    assert value.get("arguments", value.get("parameters", {})) == json.loads(call[1])
    rest = text[end:].lstrip()
    if format.closer and rest.startswith(format.closer):
        return text.index(format.closer, end) + len(format.closer)
    return end


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("within <tool_call></tool_call> XML tags: {{ tools | tojson }}", HERMES),
        ("<tool_call>\n<function={{ name }}>", None),
        ("<tool_call>{{ name }}<arg_key>", None),
        ("ns + '<tool_call>' + '<invoke name=' + name", None),
        ("within <tool_call> tags: <tool_calls>[]</tool_calls>", None),
        ("<|python_tag|> or <function={{ name }}>{}</function>", None),
        ('<|start_header_id|>{"name": function name, "parameters": dictionary}', LLAMA3_JSON),
        ("<|python_tag|>", LLAMA3_JSON),
        ("{{ messages }}", None),
        ("", None),
    ],
)
def test_a_template_tells_its_format(template: str, format: ToolCallFormat | None) -> None:
    assert choose_format("auto", template) is format
    assert choose_format("none", template) is None
    assert choose_format("hermes", template) is HERMES
