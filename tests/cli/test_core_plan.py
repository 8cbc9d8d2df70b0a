"""`octavo up` gives each worker cores of its own, and a board to lend them on."""

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cli import plan
from octavo.cli.plan import CORE_BOARD, Plan
from octavo.cli.up_config import UpConfig

CONFIG = UpConfig(model="m", address="127.0.0.1:1", redis=False, device="cpu")


@pytest.fixture(autouse=True)
def five_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "allowed_cores", lambda: (0, 1, 2, 3, 4))
    monkeypatch.setattr(plan, "physical_cores", lambda cores: cores)
    monkeypatch.setattr(plan, "usable_cores", lambda cores: cores)


def core_flags(config: UpConfig) -> list[tuple[str | None, str | None]]:
    """(--cpu-cores, --core-board) of each worker."""

    def value(arguments: list[str], flag: str) -> str | None:
        return arguments[arguments.index(flag) + 1] if flag in arguments else None

    children = Plan(config, Path("m"), Path("run"), None).workers()
    return [
        (value(c.arguments, "--cpu-cores"), value(c.arguments, "--core-board")) for c in children
    ]


def test_cores_are_split_and_lent_by_default() -> None:
    board = f"run/{CORE_BOARD}"
    assert core_flags(CONFIG) == [("0-1", board), ("2-4", board)]


def test_lending_can_be_switched_off() -> None:
    assert core_flags(replace(CONFIG, lend_cores=False)) == [("0-1", None), ("2-4", None)]


def test_workers_that_take_turns_on_a_core_lend_nothing() -> None:
    flags = core_flags(replace(CONFIG, prefill_workers=3, decode_workers=3))
    assert flags == [(str(core), None) for core in (0, 1, 2, 3, 4, 0)]
