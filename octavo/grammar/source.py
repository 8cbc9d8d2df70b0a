"""A constraint in the library's form, and the limits under which the library compiles it.

constraint --source_of--> text --LLMatcher--> a matcher, or why there is none
"""

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from octavo.grammar.constraint import Constraint
from octavo.grammar.number_bounds import include_bounds

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# White space without an end is what models fall into where JSON lets them.
JSON_DEFAULTS: "JsonCompileOptions" = {"whitespace_pattern": r"\x20|\r?\n[\x20\t]{0,40}"}
# A lexer's state takes 1 to 2 kB, and every sequence has a lexer of its own.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def source_of(constraint: Constraint) -> str:
    """What `LLMatcher` takes. Most errors show only when that is compiled.

    Raises:
        ValueError: it cannot be read; the message begins with the field.
    """
    match constraint.field:
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.text)
        case "ebnf_grammar":
            return LLMatcher.grammar_from_lark(_lark(constraint))
        case "choice":
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(constraint.text))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
        case _:
            return _schema_source(constraint)


def compile_source(source: str, tokenizer: LLTokenizer, field: str) -> LLMatcher:
    """A matcher at its start, its first mask computed.

    Raises:
        ValueError: it is no grammar, matches nothing, or is too large; the message begins with the
            field and has the library's reason.
    """
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # finds what matches nothing
    if matcher.is_error():
        raise ValueError(f"{field} is no usable grammar: {reason_of(matcher)}")
    return matcher


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher failed."""
    error = matcher.get_error().removesuffix("<non-verbose/>").strip()
    if error.startswith("NoExtension"):
        return "no text matches it"
    return error


def _schema_source(constraint: Constraint) -> str:
    text = "{}" if constraint.text.strip() == "true" else constraint.text
    try:
        return LLMatcher.grammar_from_json_schema(include_bounds(text), defaults=JSON_DEFAULTS)
    except ValueError as error:
        if "Expecting object" in str(error):
            raise ValueError(f"{constraint.field} must be a JSON object or true") from error
        raise ValueError(f"{constraint.field} is no JSON: {error}") from error


def _lark(constraint: Constraint) -> str:
    if "::=" not in constraint.text:
        return constraint.text
    try:
        return any_to_lark(constraint.text)
    except Exception as error:  # the converter's own, and what it never thought of
        raise ValueError(f"{constraint.field} is no GBNF: {error}") from error
