"""How many examples a property is tried on: in CI, where they are always the same ones, fewer."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import settings

SHARE = 4 if os.environ.get("CI") else 1


def examples(number: int) -> Callable[[Any], Any]:
    return settings(max_examples=number // SHARE, deadline=None)
