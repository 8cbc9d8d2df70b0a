"""Exclusive bounds of numbers as inclusive ones that also hold for who reads doubles.

    "exclusiveMinimum": 13.75   -->   "minimum": 13.750000000000002   (the next double)

As decimals, 13.7500000000000001 is greater than 13.75; as doubles, which nearly all readers make of
JSON's numbers (RFC 8259, section 6), both are one number. Rounding keeps order, so what is at least
the next double is read as greater.

Only bounds that numbers are to be farther from zero than: llguidance 1.9 takes 99.99 where less
than 100 is asked for, but where at most 99.99999999999999 is, it wants all of the digits.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, TypeGuard

_LITERALS = ("const", "enum", "default", "examples")  # values, not schemas
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_BOUNDS = {
    "exclusiveMinimum": ("minimum", max, 1),
    "exclusiveMaximum": ("maximum", min, -1),
}
# Zero has a next double of 324 digits. What is nearer to it cannot be written where it is excluded.
_NEXT_TO_ZERO = 1e-30


def include_bounds(text: str) -> str:
    """A JSON schema, changed; what cannot be read as JSON comes back as it is."""
    if not any(keyword in text for keyword in _BOUNDS):
        return text
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            for keyword in _BOUNDS:
                _include(node, keyword)
            pending += _subschemas(node)
        elif isinstance(node, list):
            pending += node
    return json.dumps(schema)


def _subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            yield from value.values()
        elif keyword not in _LITERALS:
            yield value


def _include(schema: dict[str, Any], exclusive: str) -> None:
    bound, (inclusive, tighter, away) = schema.get(exclusive), _BOUNDS[exclusive]
    if not _is_number(bound) or schema.get("type") == "integer":
        return
    nearest, other = _next_double(bound, away), schema.get(inclusive, bound)
    if nearest is not None and _is_number(other):
        del schema[exclusive]
        schema[inclusive] = tighter(nearest, other)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _next_double(bound: float, away: int) -> float | None:
    """The next double beyond bound, on the side of `away` (1 or -1) from zero.

    None: bound is on the other side, or so large or small that the library takes neither.
    """
    if bound == 0:
        return away * _NEXT_TO_ZERO
    if (bound > 0) != (away > 0):
        return None
    try:
        nearest = math.nextafter(bound, away * math.inf)
    except OverflowError:
        return None
    return nearest if _NEXT_TO_ZERO <= abs(nearest) < math.inf else None
