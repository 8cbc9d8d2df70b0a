"""Masks: exact at every place, whatever way led there; an end exactly where the grammar may end."""

import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from llguidance import LLParserLimits
from tokenizers import Tokenizer

from checkpoints import tiny_tokenizer, write_tokenizer
from checkpoints.tokenizer import END_OF_TEXT, IM_END
from grammar.conftest import VOCAB_SIZE
from grammar.walks import allowed, walk
from octavo.grammar import source
from octavo.grammar.compiler import Compiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.matcher import Grammar
from octavo.grammar.vocabulary import NoGrammars, Vocabulary
from text.vocabularies import metaspace

TOKENIZER = tiny_tokenizer(VOCAB_SIZE)
SCHEMA = {
    "type": "object",
    "properties": {
        "größe": {"type": "integer", "minimum": 0, "maximum": 99},
        "🙂": {"enum": ["日本", "é\n", None]},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "text": {"type": "string", "maxLength": 6},
    },
    "required": ["größe", "🙂", "list", "text"],
    "additionalProperties": False,
}


def compiled(compiler: Compiler, field: str, value: object) -> Grammar:
    return compiler.compile(Constraint.of(field, value))


def ids_of(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return token_ids


def test_random_walks_parse_and_validate(compiler: Compiler) -> None:
    grammar = compiled(compiler, "json_schema", json.dumps(SCHEMA, ensure_ascii=False))
    rng = random.Random(0)
    num_ended = 0
    for _ in range(60):
        token_ids = walk(grammar, rng, VOCAB_SIZE, [IM_END], max_tokens=300)
        if token_ids[-1] == IM_END:
            num_ended += 1
            text = TOKENIZER.decode(token_ids[:-1], skip_special_tokens=False)
            jsonschema.validate(json.loads(text), SCHEMA)
    assert num_ended > 40


def test_a_replayed_and_a_forked_matcher_stand_where_the_first_one_does(compiler: Compiler) -> None:
    grammar = compiled(compiler, "json_schema", json.dumps(SCHEMA, ensure_ascii=False))
    token_ids = walk(grammar, random.Random(1), VOCAB_SIZE, [IM_END], max_tokens=300)
    matcher = grammar.matcher()
    for count, token_id in enumerate(token_ids):
        replayed, forked = grammar.matcher(token_ids[:count]), matcher.fork()
        together = matcher.masks.compute([replayed, matcher, forked])
        assert (together[0] == together[1]).all() and (together[0] == together[2]).all()
        forked.accept(3)  # most likely wrong, and nobody else's concern
        matcher.accept(token_id)
        assert matcher.failure is None
    assert grammar.matcher(token_ids[:-1]).num_allowed([3]) == 0


def test_the_end_may_come_exactly_where_the_text_is_complete(compiler: Compiler) -> None:
    cases: list[tuple[str, object, str, list[bool]]] = [
        ("choice", ("a", "abc"), "abc", [False, True, False, True]),
        ("regex", "a{2,3}", "aaa", [False, False, True, True]),
        ("regex", "^(|.*)$", "a\t", [True, True, True]),
        ("json_object", True, "{}", [False, False, True]),
        ("ebnf_grammar", 'start: "x" ("," "x")*', "x,x", [False, True, False, True]),
        ("ebnf_grammar", 'root ::= "x" ("," "x")*', "x,x", [False, True, False, True]),
    ]
    for field, value, text, may_end in cases:
        matcher = compiled(compiler, field, value).matcher()
        found = [IM_END in allowed(matcher, VOCAB_SIZE)]
        for byte in text.encode():
            matcher.accept(byte_token(byte))
            found.append(IM_END in allowed(matcher, VOCAB_SIZE))
        assert (matcher.failure, found) == (None, may_end), (field, value)


def byte_token(byte: int) -> int:
    """The token of a single byte."""
    (token_id,) = TOKENIZER.encode(chr(byte), add_special_tokens=False).ids
    return int(token_id)


def test_nothing_but_the_end_follows_what_is_complete(compiler: Compiler) -> None:
    matcher = compiled(compiler, "choice", ("🙂 日本",)).matcher(ids_of("🙂 日本"))
    assert allowed(matcher, VOCAB_SIZE) == [IM_END]
    matcher.accept(IM_END)
    assert matcher.failure is None


def test_a_matcher_that_failed_allows_nothing_not_even_the_end(compiler: Compiler) -> None:
    """To the library a failed matcher means: end here."""
    good, bad = (compiled(compiler, "json_object", True).matcher() for _ in range(2))
    bad.accept(3)
    masks = good.masks.compute([bad, good, bad.fork()])
    assert not masks[0].any() and not masks[2].any() and masks[1].any()
    assert bad.failure
    assert allowed(bad.fork(), VOCAB_SIZE) == []


def test_a_sequence_that_reaches_a_limit_fails_alone(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LIMITS", LLParserLimits(max_lexer_states=100))
    one, two = (compiled(compiler, "regex", "(.*a.{12}b)+") for _ in range(2))
    matcher, other, rng = one.matcher(), two.matcher(), random.Random(0)
    for _ in range(300):
        if not allowed(matcher, VOCAB_SIZE):
            break
        matcher.accept(byte_token(rng.choice(b"abc")))
    assert matcher.failure is not None and "too many states" in matcher.failure
    assert allowed(other, VOCAB_SIZE) and other.failure is None


@pytest.mark.parametrize("is_added", [True, False])
def test_an_end_that_looks_like_text_is_no_text(tmp_path: Path, is_added: bool) -> None:
    """Inside of a string it would end the output in the middle."""
    write_tokenizer(tmp_path, TOKENIZER)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["special"] = token["id"] != IM_END
    if not is_added:
        content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] != IM_END]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    vocabulary = Vocabulary.load(tmp_path, VOCAB_SIZE, [IM_END, END_OF_TEXT])
    assert {IM_END, END_OF_TEXT} <= vocabulary.special_tokens.keys()
    matcher = compiled(Compiler(vocabulary), "json_schema", '{"type": "string"}').matcher()
    matcher.accept(byte_token(ord('"')))
    assert not {IM_END, END_OF_TEXT} & set(allowed(matcher, VOCAB_SIZE))
    matcher.accept(byte_token(ord('"')))
    assert set(allowed(matcher, VOCAB_SIZE)) == {IM_END, END_OF_TEXT}


def test_a_sentencepiece_vocabulary_gives_the_same_texts(tmp_path: Path) -> None:
    folder = metaspace(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    compiler = Compiler(Vocabulary.load(folder, size, [2]))
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    grammar = compiled(compiler, "json_schema", json.dumps({**schema, "required": ["a"]}))
    rng = random.Random(3)
    for _ in range(20):
        token_ids = walk(grammar, rng, size, [2], max_tokens=200)
        if token_ids[-1] == 2:
            jsonschema.validate(json.loads(tokenizer.decode(token_ids[:-1])), schema)


def test_a_padded_vocabulary_has_no_token_beyond_its_own(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, TOKENIZER)
    compiler = Compiler(Vocabulary.load(tmp_path, VOCAB_SIZE + 77, [IM_END]))
    matcher = compiled(compiler, "regex", ".*").matcher()
    masks = matcher.masks.compute([matcher])
    assert masks.shape == (1, -(-(VOCAB_SIZE + 77) // 32) * 4) and masks.dtype == np.uint8
    assert max(allowed(matcher, VOCAB_SIZE + 77)) < VOCAB_SIZE


def test_models_without_an_end_or_a_tokenizer_are_refused_by_name(tmp_path: Path) -> None:
    constraint = Constraint("regex", "a")
    with pytest.raises(ValueError, match=r"regex cannot be used: .* no tokenizer.json"):
        Compiler(Vocabulary.load(tmp_path, 10, [2])).compile(constraint)
    write_tokenizer(tmp_path, TOKENIZER)
    with pytest.raises(ValueError, match=r"regex cannot be used: .* no end-of-sequence"):
        Compiler(Vocabulary.load(tmp_path, VOCAB_SIZE, [])).compile(constraint)
    with pytest.raises(NoGrammars):
        Compiler(Vocabulary.load(tmp_path, VOCAB_SIZE, [])).prepare()
