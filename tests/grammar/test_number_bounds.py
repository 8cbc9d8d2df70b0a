"""Exclusive bounds hold for readers of doubles, which cannot tell every two decimals apart."""

import json
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from checkpoints.tokenizer import IM_END
from grammar.conftest import VOCAB_SIZE
from grammar.walks import allowed
from octavo.grammar.compiler import Compiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.number_bounds import include_bounds
from octavo.grammar.tool_calls import tool_call_grammar
from octavo.text.tool_calls import HERMES

TOKENIZER = tiny_tokenizer(VOCAB_SIZE)
ABOVE = 13.750000000000002  # the next double after 13.75


def included(schema: Any) -> Any:
    return json.loads(include_bounds(json.dumps(schema)))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"exclusiveMinimum": 13.75}, {"minimum": ABOVE}),
        ({"exclusiveMaximum": -13.75, "minimum": -20}, {"maximum": -ABOVE, "minimum": -20}),
        ({"exclusiveMinimum": 13.75, "minimum": 20}, {"minimum": 20}),
        ({"exclusiveMaximum": -13.75, "maximum": 20}, {"maximum": -ABOVE}),
        ({"exclusiveMinimum": 0}, {"minimum": 1e-30}),
        ({"exclusiveMaximum": 0}, {"maximum": -1e-30}),
        ({"anyOf": [{"exclusiveMinimum": 13.75}]}, {"anyOf": [{"minimum": ABOVE}]}),
        (
            {"properties": {"const": {"exclusiveMaximum": -13.75}}},
            {"properties": {"const": {"maximum": -ABOVE}}},
        ),
    ],
)
def test_the_next_double_is_included(schema: Any, expected: Any) -> None:
    assert included(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"exclusiveMinimum": 1}, "enum": [{"exclusiveMaximum": 1}]},
        {"type": "integer", "exclusiveMinimum": 1},
        {"exclusiveMinimum": True, "minimum": 1},
        {"exclusiveMinimum": 1, "minimum": True},
        {"exclusiveMinimum": 10**400},
        {"exclusiveMinimum": -13.75, "exclusiveMaximum": 13.75},
        {"properties": {"exclusiveMinimum": {"type": "string"}}},
    ],
)
def test_all_else_stays_as_it_is(schema: Any) -> None:
    assert included(schema) == schema


def test_what_cannot_be_read_is_left_to_who_says_so() -> None:
    deep = '{"exclusiveMinimum": 1, "items": ' * 10_000 + "{}" + "}" * 10_000
    for text in ('{"exclusiveMinimum": ', deep):
        assert include_bounds(text) == text


def test_half_a_character_stays_an_escape() -> None:
    text = '{"exclusiveMinimum": -1, "description": "\\ud83d"}'
    assert include_bounds(text) == text


@pytest.mark.parametrize(
    ("schema", "text", "is_allowed"),
    [
        ({"type": "number", "exclusiveMinimum": 13.75}, "13.7500000000000001", False),
        ({"type": "number", "exclusiveMinimum": 13.75}, "13.76", True),
        ({"type": "number", "exclusiveMaximum": -13.75}, "-13.7500000000000001", False),
        ({"type": "number", "exclusiveMaximum": -13.75}, "-13.76", True),
        ({"type": "number", "exclusiveMaximum": 100}, "99.99", True),
        ({"type": "number", "exclusiveMinimum": 0}, "0.0", False),
        ({"type": "number", "exclusiveMinimum": 0}, "0.000001", True),
        ({"type": ["integer", "null"], "exclusiveMinimum": 3}, "3", False),
        ({"type": ["integer", "null"], "exclusiveMinimum": 3}, "4", True),
    ],
)
def test_a_number_is_written_only_where_its_double_is_inside(
    compiler: Compiler, schema: Any, text: str, is_allowed: bool
) -> None:
    matcher = compiler.compile(Constraint.of("json_schema", json.dumps(schema))).matcher()
    token_ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    has_come = matcher.num_allowed(token_ids) == len(token_ids)
    for token_id in token_ids:
        matcher.accept(token_id)
    assert (has_come and IM_END in allowed(matcher, VOCAB_SIZE)) == is_allowed


def test_arguments_of_tools_have_such_bounds_too() -> None:
    """The grammar's text is all there is to look at: what it lets through is tested above."""
    parameters = {"type": "object", "properties": {"price": {"exclusiveMinimum": 13.75}}}
    tools = [{"name": "buy", "parameters": parameters}]
    grammar = tool_call_grammar(HERMES, tools, {}, is_one=True)
    assert f'"minimum": {ABOVE}' in grammar and "exclusiveMinimum" not in grammar
    assert parameters["properties"] == {"price": {"exclusiveMinimum": 13.75}}
