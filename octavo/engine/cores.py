"""The cores an engine computes on, and what it tells whoever manages them.

idle: lend --> work: want, then at_work for each forward pass --> idle: lend
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Cores(Protocol):
    """But for `work_alone`, all calls come from the thread that makes the steps."""

    lends: bool  # whether another engine computes on the cores that are lent

    def enter(self) -> None:
        """This thread makes the steps from now on."""

    def work_alone(self) -> None:
        """Never use helpers: the products of this engine's model would leave them idle."""

    def want(self) -> None:
        """There is work, or there will be at once; quick, and harmless when said again."""

    def lend(self) -> None:
        """No step is worth making before something arrives."""

    def at_work(self) -> AbstractContextManager[None]:
        """A forward pass, and the choice of tokens after it, runs inside the block."""


class AnyCore:
    """One thread, wherever the system puts it."""

    lends = False

    def enter(self) -> None: ...

    def work_alone(self) -> None: ...

    def want(self) -> None: ...

    def lend(self) -> None: ...

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()
