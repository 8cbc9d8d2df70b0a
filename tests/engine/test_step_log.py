"""At level debug each step has a line, of which the simulator makes its costs."""

import logging

import pytest

from engine.conftest import collect
from engine.counting import make_sequence

LOGGER = "octavo.engine.step_log"


async def test_steps_are_told_at_level_debug(make_loop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        async with make_loop() as loop:
            await collect(loop, make_sequence("a", [3] * 12))
    lines = [record.fields for record in caplog.records if record.name == LOGGER]
    sizes = [
        tuple(line[name] for name in ("rows", "prompt_tokens", "context_tokens", "attended_pairs"))
        for line in lines
    ]
    # A step computes 8 tokens at most: 1 + 2 + .. + 8 pairs, then 9 + .. + 12; of four output
    # tokens the first comes with the last chunk.
    assert sizes[:2] == [(0, 8, 0, 36.0), (0, 4, 0, 42.0)]
    assert sizes[2:] == [(1, 0, context, 0.0) for context in (13, 14, 15)]
    assert all(line["seconds"] >= 0 and line["cpu_s"] > 0 for line in lines)


async def test_at_level_info_nothing_is_told(make_loop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=LOGGER):
        async with make_loop() as loop:
            await collect(loop, make_sequence("a", [3]))
    assert not [record for record in caplog.records if record.name == LOGGER]
