"""C37: whatever comes for a grammar is refused by name within 2 s, or works; none else suffers."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from octavo.grammar.checker import Checker
from octavo.grammar.constraint import Constraint, check_constraint
from octavo.grammar.grammars import (
    MAX_KEPT,
    MAX_WAITING,
    CompiledGrammars,
    TooManyGrammars,
    checked_grammars,
    compiled_grammars,
)
from octavo.grammar.matcher import Grammar
from octavo.grammar.vocabulary import Vocabulary

LIMIT_S = 2.0
DEEP = '{"type": "array", "items": ' * 10_000 + "1" + "}" * 10_000
WORD = "".join(random.Random(0).choices("abcdefgh", k=30))
REFUSED = {
    "not JSON": ("json_schema", '{"type": '),
    "no schema": ("json_schema", "[]"),
    "a string where an object is due": ("json_schema", '{"properties": "x"}'),
    "10,000 deep": ("json_schema", DEEP),
    "a reference to itself": ("json_schema", '{"$ref": "#"}'),
    "a foreign reference": ("json_schema", '{"$ref": "http://localhost/x.json"}'),
    "no number between": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'),
    "what cannot be held to": ("json_schema", '{"if": {"type": "string"}}'),
    "unknown format": ("json_schema", '{"type": "string", "format": "isbn"}'),
    "open group": ("regex", "(a"),
    "look-ahead": ("regex", "(?=a)b"),
    "back-reference": ("regex", r"(a)\1"),
    "20,000 groups": ("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "duplicate root rule": ("ebnf_grammar", 'start: "a"\nstart: "b"'),
    "duplicate root rule, GBNF": ("ebnf_grammar", 'root ::= "a"\nroot ::= ('),
    "no root rule": ("ebnf_grammar", 'other: "a"'),
    "only itself": ("ebnf_grammar", "start: start"),
    "unknown token": ("ebnf_grammar", 'start: <|nothing|> "a"'),
    "5,000 groups": ("ebnf_grammar", "start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
    "5,000 groups, GBNF": ("ebnf_grammar", "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000),
}
# These may be refused or not, but neither hang nor grow.
COSTLY = {
    "nested quantifiers": ("regex", "(a+)+b"),
    "an empty alternative": ("regex", "^(|.*)$"),
    "repeated repetition": ("regex", "((a|b|ab)*){1000}"),
    "repetition of repetition": ("regex", "(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
    "many characters": ("regex", r"(\p{L}{0,50}\p{N}{0,50}){50}"),
    "long tails": ("regex", "(.*a.{200}b)"),
    "many alternatives": ("regex", "|".join(f"{WORD}{i}" for i in range(7_000))),
    "many members": (
        "json_schema",
        json.dumps({"properties": {f"member {i}": {"maxLength": i % 50} for i in range(6_000)}}),
    ),
    "many alternatives of all": (
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "allOf": [
                    {"anyOf": [{"properties": {f"{k}{i}": {"const": i}}} for k in "abc"]}
                    for i in range(40)
                ],
            }
        ),
    ),
    "many patterns of all": (
        "json_schema",
        json.dumps({"allOf": [{"pattern": f".*a.{{{i}}}b.*"} for i in range(1, 40)]}),
    ),
    "references that double": (
        "json_schema",
        json.dumps(
            {
                "$defs": {
                    f"d{i}": {"properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}}
                    for i in range(60)
                }
                | {"d60": {"type": "string"}},
                "$ref": "#/$defs/d0",
            }
        ),
    ),
    "long strings": ("json_schema", '{"type": "string", "minLength": 1000000}'),
    "long arrays": ("json_schema", '{"type": "array", "minItems": 1000000}'),
    "ambiguous": ("ebnf_grammar", 'start: start start | "a" | start start start'),
    "many rules": (
        "ebnf_grammar",
        "start: r0\n" + "\n".join(f'r{i}: "x{i}" r{(i * 7) % 9000}?' for i in range(9_000)),
    ),
    "not these": ("ebnf_grammar", "start: T\nT: ~(/.*a.{15}b/ & /.*c.{15}d/ & /.*e.{15}f/)"),
    "not these, long": ("ebnf_grammar", "start: T\nT: ~(/.*a.{40}b.*/ | /.*b.{40}a.*/)"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grammars(vocabulary: Vocabulary) -> AsyncIterator[CompiledGrammars]:
    async with compiled_grammars(vocabulary) as grammars:
        await grammars.of(Constraint("regex", "first"))  # starts the child
        yield grammars


def rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSED)
async def test_a_bad_grammar_is_refused_by_name(grammars: CompiledGrammars, name: str) -> None:
    field, text = REFUSED[name]
    began = time.monotonic()
    with pytest.raises(ValueError) as refused:
        await grammars.of(Constraint(field, text))
    assert str(refused.value).split()[0] == field and len(str(refused.value)) > len(field) + 8
    assert time.monotonic() - began < LIMIT_S
    assert allowed_first(await grammars.of(Constraint("regex", "first")))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", COSTLY)
async def test_a_costly_grammar_ends_in_time_and_blocks_nobody(
    grammars: CompiledGrammars, name: str
) -> None:
    constraint = Constraint(*COSTLY[name])
    check_constraint({constraint.field: constraint.text})  # not refused for its size
    before, began = rss_mb(), time.monotonic()
    longest = 0.0
    task = asyncio.create_task(grammars.of(constraint))
    while not task.done():
        tick = time.monotonic()
        await asyncio.wait({task}, timeout=0.01)
        longest = max(longest, time.monotonic() - tick - 0.01)
    took = time.monotonic() - began
    assert took < 2 * LIMIT_S, "checked, then compiled, each within its limit"
    assert longest < 0.5, "the event loop was held up"
    assert rss_mb() - before < 300
    if task.exception() is None:
        began = time.monotonic()
        allowed_first(task.result())
        assert time.monotonic() - began < 0.5
    else:
        assert str(task.exception()).split()[0] == constraint.field


def allowed_first(grammar: Grammar) -> bool:
    matcher = grammar.matcher()
    return bool(matcher.masks.compute([matcher]).any())


def test_a_child_that_died_is_replaced(vocabulary: Vocabulary) -> None:
    checker = Checker(vocabulary.special_tokens, vocabulary.eos_token_ids)
    try:
        assert checker.source_of(Constraint("regex", "a"))
        assert checker._child is not None
        checker._child.kill()
        checker._child.wait()
        assert checker.source_of(Constraint("regex", "abc"))
    finally:
        checker.close()


async def test_what_is_kept_is_bounded(vocabulary: Vocabulary) -> None:
    async with checked_grammars(vocabulary.special_tokens, vocabulary.eos_token_ids) as grammars:
        for number in range(MAX_KEPT + 50):
            await grammars.of(Constraint("choice", f'["{number}"]'))
        assert len(grammars) == MAX_KEPT
        big = "x" * 200_000
        for number in range(30):
            await grammars.of(Constraint("regex", f"{number}|{big}"))
        assert len(grammars) <= 21  # 4 MiB of text


async def test_those_who_wait_for_the_same_share_it_and_may_leave(vocabulary: Vocabulary) -> None:
    async with checked_grammars(vocabulary.special_tokens, vocabulary.eos_token_ids) as grammars:
        same = [asyncio.create_task(grammars.of(Constraint("regex", "a+"))) for _ in range(50)]
        await asyncio.sleep(0)
        same[0].cancel()
        found = await asyncio.gather(*same[1:])
        assert all(source is found[0] for source in found)
        assert same[0].cancelled()


async def test_a_flood_is_refused_at_once(vocabulary: Vocabulary) -> None:
    async with compiled_grammars(vocabulary) as grammars:
        waiting = [
            asyncio.create_task(grammars.of(Constraint("regex", f"a{number}")))
            for number in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyGrammars):
            await grammars.of(Constraint("regex", "one more"))
        await asyncio.gather(*waiting)
        assert await grammars.of(Constraint("regex", "one more"))
