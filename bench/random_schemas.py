"""Random JSON schemas of every kind that a grammar can hold an output to; most are finite."""

import random
from typing import Any

Schema = dict[str, Any]

NAMES = ("a", "name", "größe", "名前", "🙂", "with space", "x-y_z", "id", "items", "价格", 'quo"te')
WORDS = ("red", "grün", "", "🙂🙃", "日本", "a\nb", 'say "x"', "\\", "0", "true")
PATTERNS = ("^[a-z]{1,6}$", "^[A-Z][0-9]{2,4}$", "^(ja|nein)$", r"^\d{3}-\d{4}$", "^[äöü]{1,3}$")
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email")
MAX_DEPTH = 3


def random_schema(rng: random.Random) -> Schema:
    """The schema of an object or an array, some with definitions that refer to themselves."""
    schema = (_object if rng.random() < 0.8 else _array)(rng, 0)
    if rng.random() < 0.15:
        schema.setdefault("properties", {})["tree"] = {"$ref": "#/$defs/node"}
        leaf = _scalar(rng)
        schema["$defs"] = {
            "node": {
                "type": "object",
                "properties": {
                    "value": leaf,
                    "children": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/node"},
                        "maxItems": 2,
                    },
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        }
    return schema


def _value(rng: random.Random, depth: int) -> Schema:
    if depth >= MAX_DEPTH or rng.random() < 0.6:
        return _scalar(rng)
    kind = rng.choice((_object, _array, _any_of))
    return kind(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _value(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    if rng.random() < 0.1:
        schema["additionalProperties"] = {"type": "boolean"}
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    schema: Schema = {
        "type": "array",
        "items": _value(rng, depth + 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }
    if rng.random() < 0.2:
        schema["prefixItems"] = [_scalar(rng)]
    return schema


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def _scalar(rng: random.Random) -> Schema:
    return rng.choice((_string, _integer, _number, _enum, _constant, _plain))(rng)


def _string(rng: random.Random) -> Schema:
    draw = rng.random()
    if draw < 0.25:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if draw < 0.4:
        return {"type": "string", "format": rng.choice(FORMATS)}
    least = rng.randint(0, 3)
    schema: Schema = {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}
    return schema if draw < 0.95 else {"type": "string"}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-1000, 1000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if rng.random() < 0.2:
        return {
            "type": "integer",
            "multipleOf": rng.choice((2, 5, 7)),
            "minimum": 0,
            "maximum": 999,
        }
    return schema


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-100, 100), 2)
    high = round(low + rng.uniform(0.5, 500), 2)
    if rng.random() < 0.3:
        return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    return {"type": "number", "minimum": low, "maximum": high}


def _enum(rng: random.Random) -> Schema:
    return {"enum": [*rng.sample(WORDS, rng.randint(1, 4)), rng.choice((1, 2.5, None, True))]}


def _constant(rng: random.Random) -> Schema:
    return {"const": rng.choice(WORDS)}


def _plain(rng: random.Random) -> Schema:
    return {"type": rng.choice(("boolean", "null", ["boolean", "null"]))}
