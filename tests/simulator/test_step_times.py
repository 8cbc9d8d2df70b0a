"""Steps from a worker's log, and the cost that is fitted to them."""

import json
from pathlib import Path

import pytest

from octavo.engine.step_size import StepSize
from simulator.step_times import StepReader, StepTime, fit_cost


def line(**fields: object) -> str:
    return json.dumps({"level": "debug", "message": "step"} | fields) + "\n"


def decode(rows: int, context: int, cpu_s: float) -> StepTime:
    return StepTime(StepSize(rows, 0, context, 0.0), cpu_s)


def prompt(tokens: int, cpu_s: float) -> StepTime:
    return StepTime(StepSize(0, tokens, 0, 0.0), cpu_s)


def test_a_log_is_read_on_from_where_it_was_left_by_whole_lines(tmp_path: Path) -> None:
    path, facts = tmp_path / "decode-0.log", {"rows": 2, "prompt_tokens": 0, "cpu_s": 0.5}
    first = line(**facts, context_tokens=10, attended_pairs=0.0)
    path.write_text(first + '{"message": "request"}\n' + first[:20])
    reader = StepReader(path)
    assert reader.read() == [decode(2, 10, 0.5)]
    with path.open("a") as log:
        log.write(first[20:])
    assert reader.read() == [decode(2, 10, 0.5)]
    assert reader.read() == []


def test_rows_and_context_are_told_apart_and_steps_held_up_left_out() -> None:
    def seconds(rows: int, context: int) -> float:
        return 0.010 + 0.002 * rows + 1e-6 * context

    steps = [
        decode(rows, context, seconds(rows, context))
        for rows in (1, 2, 8)
        for context in range(100 * rows, 200 * rows, rows)
    ]
    steps += [decode(8, 1000, 0.5), prompt(128, 0.3), prompt(128, 0.5), prompt(128, 0.31)]
    steps += [prompt(256, 0.6), StepTime(StepSize(2, 32, 10, 0.0), 9.0)]
    cost = fit_cost(steps)
    assert [rows for rows, _ in cost.decode_rows] == [1, 2, 8]
    assert [s for _, s in cost.decode_rows] == pytest.approx([0.012, 0.014, 0.026])
    assert cost.context_token_s == pytest.approx(1e-6)
    assert cost.prompt_tokens == ((128, 0.31), (256, 0.6))


def test_a_context_that_seems_to_save_time_costs_nothing() -> None:
    cost = fit_cost([decode(1, 10, 0.011), decode(1, 20, 0.009), prompt(16, 0.1)])
    assert cost.context_token_s == 0.0
    assert cost.decode_rows == ((1, pytest.approx(0.010)),)
