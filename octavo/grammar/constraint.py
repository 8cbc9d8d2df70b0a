"""What a request wants its output to be, as its caller wrote it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

FIELDS = ("json_schema", "regex", "ebnf_grammar", "choice", "json_object")  # of SamplingParams
MAX_GRAMMAR_BYTES = 1 << 18
MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 1024
ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class Constraint:
    """One grammar; source.py makes of it what can be compiled."""

    field: str  # one of FIELDS; errors name it
    text: str  # as it was written; of `choice` the JSON of a list, of `json_object` a schema

    @classmethod
    def of(cls, field: str, value: object) -> "Constraint":
        """Of a field that is set, as SamplingParams holds it."""
        if field == "choice":
            return cls(field, json.dumps(value, ensure_ascii=False))
        return cls(field, ANY_OBJECT if field == "json_object" else str(value))


def check_constraint(given: Mapping[str, object]) -> None:
    """Raise ValueError, naming field and limit, for what shows without compiling.

    given: the fields of FIELDS that are set.
    """
    names = list(given)
    if len(names) > 1:
        raise ValueError(f"{names[1]} cannot be set beside {names[0]}: an output has one grammar")
    for name, value in given.items():
        if isinstance(value, tuple):
            if len(value) > MAX_CHOICES:
                raise ValueError(f"{name} has {len(value)} texts, at most {MAX_CHOICES}")
            for text in value:
                _check_size(f"{name} texts", text, MAX_CHOICE_BYTES)
        elif isinstance(value, str):
            _check_size(name, value, MAX_GRAMMAR_BYTES)


def _check_size(name: str, text: str, limit: int) -> None:
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be written in UTF-8: {error.reason}") from error
    if not 1 <= num_bytes <= limit:
        raise ValueError(f"{name} must have 1 to {limit} bytes, got {num_bytes}")
