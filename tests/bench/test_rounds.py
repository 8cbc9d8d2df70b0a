"""How rounds become figures: turns, disturbed rounds, the faster peer, floors."""

import pytest

import rounds
from figures import bootstrap_interval, figure_of
from goals import GOALS
from roofs import Roofs
from rounds import Case, over_best, run_rounds

QUIET = Roofs(20.0, 5.0, 100.0)
DISTURBED = Roofs(20.0, 5.0, 60.0)


class ScriptedEngine:
    """Stands in for a server: has the same throughput in every round, and notes its turns."""

    def __init__(self, name: str, speed: float, turns: list[str]) -> None:
        self.name, self.speed, self.turns = name, speed, turns
        self.cpu_s = 0.0

    async def ready(self) -> None: ...

    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]:
        self.turns.append(self.name)
        return {"output_tokens_per_s": self.speed}

    async def close(self) -> None: ...


class ScriptedProbe:
    """Gives the roofs it was made with, one a round."""

    def __init__(self, *roofs: Roofs) -> None:
        self._roofs = iter(roofs)

    def measure(self, label: str) -> Roofs:
        return next(self._roofs)


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_S", 0.0)


async def measure(turns: list[str], *roofs: Roofs) -> rounds.Measured:
    engines = [
        ScriptedEngine(name, speed, turns)
        for name, speed in (("octavo", 90.0), ("slow", 50.0), ("fast", 100.0))
    ]
    case = Case("1 at once", 1, engines, lambda number: [[1]], 1)
    return await run_rounds(engines, [case], len(roofs) - 1, ScriptedProbe(*roofs))


async def test_the_order_of_engines_turns_with_every_round() -> None:
    turns: list[str] = []
    await measure(turns, QUIET, QUIET, QUIET)
    assert turns[3:6] == turns[6:9][::-1]


async def test_the_warm_up_round_is_not_counted() -> None:
    measured = await measure([], QUIET, QUIET)
    assert {row["round"] for row in measured.rows} == {0}


async def test_a_disturbed_round_is_marked_and_left_out() -> None:
    measured = await measure([], QUIET, QUIET, DISTURBED)
    assert {row["round"] for row in measured.rows if row["disturbed"]} == {1}
    assert {row["round"] for row in measured.usable} == {0}


async def test_the_faster_peer_is_the_one_compared_with() -> None:
    measured = await measure([], QUIET, QUIET)
    figure = over_best("bf16-vllm-1", measured.usable, "1 at once", "octavo", ["slow", "fast"])
    assert figure is not None and figure.value == pytest.approx(0.9)
    assert "fast" in figure.detail


async def test_without_a_peer_there_is_no_figure() -> None:
    measured = await measure([], QUIET, QUIET)
    assert over_best("bf16-vllm-1", measured.usable, "1 at once", "octavo", []) is None


def test_a_ratio_is_held_against_its_floor_in_the_right_direction() -> None:
    assert figure_of("bf16-vllm-1", [0.8]).verdict == "floor"
    assert figure_of("bf16-vllm-1", [0.6]).verdict == "below"
    assert figure_of("ready", [0.04]).verdict == "aim"
    assert figure_of("ready", [0.3]).verdict == "below"


def test_the_interval_holds_the_median_and_narrows_to_equal_rounds() -> None:
    low, high = bootstrap_interval([1.0, 1.1, 0.9, 1.05, 0.95])
    assert low <= 1.0 <= high
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_every_aim_asks_for_more_than_its_floor() -> None:
    for goal in GOALS.values():
        assert goal.reaches(goal.aim, goal.floor)
