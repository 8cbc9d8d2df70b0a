"""One thread and its helpers, each on a core of its own: how an engine uses several CPU cores.

torch itself keeps to one thread: two that spin for each other beside any third on two cores take
800 ms a step instead of 40.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from octavo.kernels.cpu.team import HelperCore, Team


class PinnedTeam:
    """`core` is the main thread's; helpers may be on cores that others own. No core is lent."""

    lends = False

    def __init__(self, core: int, helpers: Sequence[HelperCore]) -> None:
        """Start the helpers, asleep.

        Raises:
            ValueError: this process may not run on one of the cores.
        """
        allowed = os.sched_getaffinity(0)
        if core not in allowed:
            raise ValueError(f"cores must be among {sorted(allowed)}, got {core}")
        self._core = core
        self._team = Team(helpers)

    @property
    def num_helpers(self) -> int:
        return self._team.num_helpers

    def enter(self) -> None:
        # Of this thread only: a process's other threads stay where they are.
        os.sched_setaffinity(0, {self._core})
        torch.set_num_threads(1)

    def work_alone(self) -> None:
        self._team.close()

    def want(self) -> None: ...

    def lend(self) -> None: ...

    def at_work(self) -> AbstractContextManager[None]:
        return self._team.at_work()


def team_of(cores: Sequence[int]) -> PinnedTeam | None:
    """A team on these cores, the main thread on the first; None for less than two."""
    if len(cores) < 2:
        return None
    return PinnedTeam(cores[0], [HelperCore(core) for core in cores[1:]])


@contextmanager
def on_this_thread(team: PinnedTeam | None, num_threads: int | None) -> Iterator[None]:
    """Enter the team for the block; where it has no helpers, torch uses num_threads of its own."""
    before = torch.get_num_threads()
    try:
        if team is not None and team.num_helpers > 0:
            with _affinity_kept():
                team.enter()
                yield
        else:
            torch.set_num_threads(num_threads or before)
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _affinity_kept() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
