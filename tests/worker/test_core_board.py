"""The board on which workers lend each other cores: who may use what, and what the dead cost."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.kernels.cpu.team import HelperCore, Team
from octavo.worker import core_board
from octavo.worker.core_board import MAX_CORES, CoreBoard, OwnCores


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cores.board"


def test_a_core_that_nobody_offered_is_nobody_elses(path: Path) -> None:
    board = CoreBoard(path)
    assert all(board.wanted(core)[0] for core in range(MAX_CORES))
    assert not any(board.borrowed(core)[0] for core in range(MAX_CORES))


def test_every_worker_of_a_host_sees_what_an_owner_says(path: Path) -> None:
    own, seen = OwnCores(CoreBoard(path), (1, 2)), CoreBoard(path)
    own.lend()
    assert [seen.wanted(core)[0] for core in range(4)] == [1, 0, 0, 1]
    own.want()
    assert [seen.wanted(core)[0] for core in range(4)] == [1, 1, 1, 1]


def test_an_owner_that_starts_again_has_its_cores(path: Path) -> None:
    OwnCores(CoreBoard(path), (0,)).lend()
    OwnCores(CoreBoard(path), (0,))
    assert CoreBoard(path).wanted(0)[0] == 1


def test_an_owner_waits_until_the_borrower_has_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_board, "BORROWER_LIMIT_S", 60.0)
    own, borrowed = OwnCores(CoreBoard(path), (0,)), CoreBoard(path).borrowed(0)
    borrowed[0] = 1
    waiting = threading.Thread(target=own.wait_until_free, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    borrowed[0] = 0
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_dead_borrower_stops_nobody_and_is_forgotten(path: Path) -> None:
    board = CoreBoard(path)
    own = OwnCores(board, (0, 1))
    board.borrowed(1)[0] = 1
    own.wait_until_free()
    assert board.borrowed(1)[0] == 0


async def test_a_lent_core_goes_from_one_worker_to_the_next_and_back(path: Path) -> None:
    board = CoreBoard(path)
    owner = OwnCores(board, (0,))
    owner.lend()
    lent = HelperCore(None, board.wanted_address(0), board.borrowed_address(0))
    one, other = Team([lent]), Team([lent])
    try:
        for team in (one, other):
            with team.at_work():
                await until(lambda: board.borrowed(0)[0] == 1)
            await until(lambda: board.borrowed(0)[0] == 0)
        owner.want()
        owner.wait_until_free()
        assert board.borrowed(0)[0] == 0
    finally:
        one.close()
        other.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_some_other_file_is_refused(path: Path) -> None:
    path.write_text("notes")
    with pytest.raises(ValueError, match="is no core board"):
        CoreBoard(path)
    assert path.read_text() == "notes"
