"""A worker's cores: those it owns, lent while it idles, and those that others lend it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from octavo.engine.core_set import CoreSet, allowed_cores, llm_cores, parse_cores
from octavo.engine.cores import AnyCore, Cores
from octavo.engine.pinned_team import PinnedTeam
from octavo.kernels.cpu.team import HelperCore
from octavo.worker.config import AUTO_CORES, WorkerConfig
from octavo.worker.core_board import CoreBoard, OwnCores


class LendingTeam(PinnedTeam):
    """A team on cores of its own and on every other of the board's that is not wanted."""

    lends = True

    def __init__(self, own: CoreSet, board: CoreBoard) -> None:
        foreign = [
            HelperCore(core, board.wanted_address(core), board.borrowed_address(core))
            for core in allowed_cores()
            if core not in own
        ]
        super().__init__(own[0], [HelperCore(core) for core in own[1:]] + foreign)
        self._board = board  # the helpers know only addresses in it
        self._own = OwnCores(board, own)

    def want(self) -> None:
        self._own.want()

    def lend(self) -> None:
        self._own.lend()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._own.wait_until_free()
        with self._team.at_work():
            yield


def cores_of(config: WorkerConfig) -> Cores:
    """What the settings say, on a CPU; a GPU's engine thread needs no core of its own.

    Raises:
        ValueError: this process may not run on one of the cores.
    """
    torch.set_num_threads(1)
    if config.cpu_cores is None:
        return AnyCore()
    own = llm_cores(None) if config.cpu_cores == AUTO_CORES else parse_cores(config.cpu_cores)
    if config.core_board is None:
        return PinnedTeam(own[0], [HelperCore(core) for core in own[1:]])
    return LendingTeam(own, CoreBoard(config.core_board))
