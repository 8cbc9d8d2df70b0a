"""What `octavo top` draws fits its terminal, and says what the router told."""

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from octavo.inference.v1 import fleet_pb2
from octavo.top.history import History
from octavo.top.marks import ASCII, UNICODE, Glyphs, blocks_bar, shorten, sparkline
from octavo.top.plain import to_json
from octavo.top.screen import Canvas, draw
from octavo.top.snapshot import Blocks
from top.moments import busy_minute, gone, history_of, moment, worker


def lines_of(
    history: History,
    width: int = 80,
    height: int | None = 24,
    trouble: str = "",
    glyphs: Glyphs = UNICODE,
) -> list[str]:
    file = StringIO()
    console = Console(file=file, width=width, height=height, highlight=False)
    console.print(draw(history, Canvas(width, height, glyphs), "10.0.0.3:50051", trouble))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def the_line(lines: list[str], start: str) -> str:
    (line,) = [line for line in lines if line.startswith(start)]
    return line


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (60, 20), (100, 16), (80, 50)])
@pytest.mark.parametrize("num_decodes", [2, 40])
@pytest.mark.parametrize("requests", [0, 3, 120])
def test_it_fits(width: int, height: int, num_decodes: int, requests: int) -> None:
    history = busy_minute(num_decodes=num_decodes, requests=requests)
    for trouble in ("", "no answer for 3 s " * 20):
        lines = lines_of(history, width, height, trouble)
        assert max(map(len, lines)) <= width
        assert len(lines) <= height
        assert sum("decode-" in line and "ready" in line for line in lines) >= 1
        if requests:
            assert any(line.startswith("request-0") for line in lines)


def test_it_says_what_the_last_minute_was() -> None:
    lines = lines_of(busy_minute())
    assert "smollm2-135m-instruct" in lines[0] and "10.0.0.3:50051" in lines[0]
    assert lines[0].endswith("up 1:02:03  ready")
    assert "12 running, 1,400 tokens queued" in the_line(lines, "prompt tokens/s")
    assert the_line(lines, "output tokens/s").split()[2] == "506"
    assert the_line(lines, "requests/s").split()[1] == "7.0"
    assert "6 preempted, 18.8 MB/s transferred" in the_line(lines, "KV blocks held")
    assert the_line(lines, "prompt tokens  ").split(maxsplit=2)[2] == (
        "62% cached (prefill 62%, decode 25%), 75% transferred"
    )
    prefill, decode = the_line(lines, "prefill "), the_line(lines, "decode  decode-1")
    assert prefill.split()[:8] == ["prefill", "prefill-0", "ready", "1", "3", "800", "ms", "340"]
    assert decode.split()[2:7] == ["ready", "6", "0", "31", "ms"]
    assert decode.endswith("16%")
    assert the_line(lines, "and ") == "and 3 more"


def test_a_wide_terminal_shows_more_of_each_worker() -> None:
    lines = lines_of(busy_minute(), 140, 40)
    row = the_line(lines, "prefill ")
    assert "10.0.0.1:50" in row and "bf16 int8" in row and " 80% " in row
    assert "█ held ▒ cached ░ free" in the_line(lines, "role")
    assert sum("of-a-caller" in line for line in lines) == 12


def test_without_a_worker_it_says_what_to_start() -> None:
    lines = lines_of(history_of(moment([], {}), moment([], {})))
    assert any("start prefill and decode workers" in line for line in lines)
    assert "0 workers" in "\n".join(lines)


def test_a_dead_worker_stands_there_with_the_reason() -> None:
    workers = [worker("prefill-0", "prefill", None), gone("decode-1", "decode")]
    message = moment(workers, {})
    message.router.is_ready = False
    lines = lines_of(history_of(message, message))
    assert lines[0].endswith("not ready")
    assert the_line(lines, "decode  decode-1").split() == ["decode", "decode-1", "unreachable"]
    assert the_line(lines, "decode-1: ") == "decode-1: connection refused"
    # The other one is alive and told no counters.
    assert the_line(lines, "prefill ").split()[3:7] == ["0", "0", "-", "-"]


def test_where_there_is_no_room_for_all_workers_the_troubled_are_shown() -> None:
    workers = [worker(f"decode-{index:02}", "decode", {}) for index in range(60)]
    workers[41].state = fleet_pb2.WORKER_STATE_STUCK
    workers[52] = gone("decode-52", "decode")
    lines = lines_of(history_of(moment(workers, {}), moment(workers, {})))
    assert "stuck" in the_line(lines, "decode  decode-41")
    assert "unreachable" in the_line(lines, "decode  decode-52")
    shown = sum(line.startswith("decode  decode-") for line in lines)
    assert the_line(lines, "and ") == f"and {60 - shown} more: {60 - shown} ready"


def test_names_cannot_move_the_cursor() -> None:
    message = moment([worker("w\x1b[2J\n", "decode", {})], {}, requests=1)
    message.router.model = "m\x1b]0;title\x07"
    message.requests[0].request_id = "id\x1b[31m[bold]\r"
    history = history_of(message, message)
    lines = lines_of(history, 140)
    assert "\x1b" not in "".join(lines)
    assert any(line.startswith("id?[31m[bold]?") for line in lines), "markup is text"
    assert "\\u001b" not in to_json(history, "a")


def test_a_terminal_that_knows_no_pictures_gets_ascii() -> None:
    text = "\n".join(lines_of(busy_minute(requests=3), glyphs=ASCII))
    assert text.isascii()
    assert "####+++++++..." in text


def test_json_is_everything_and_its_rates() -> None:
    told: dict[str, Any] = json.loads(to_json(busy_minute(requests=1), "10.0.0.3:50051"))
    assert told["address"] == "10.0.0.3:50051" and told["interval_s"] == 1.0
    assert told["router"]["counters"]["prompt_tokens"] > told["router"]["counters"]["requests"] > 0
    assert told["router"]["rates"]["completion_tokens_per_s"] == 506
    assert [each["state"] for each in told["workers"]] == ["ready"] * 3
    assert told["workers"][1]["rates"]["tokens_per_s"] == 230
    assert told["workers"][1]["epoch"] == "1"
    assert told["requests"][0]["prompt_tokens"] == 100
    one = json.loads(to_json(history_of(moment([gone("d", "decode")], {})), "a"))
    assert one["router"]["rates"] is None and one["workers"][0]["rates"] is None


def test_a_bar_shows_whatever_is_not_empty() -> None:
    assert blocks_bar(Blocks(10_000, 9_998, 1, 1), 8, UNICODE).plain == "█▒░░░░░░"
    assert blocks_bar(Blocks(10, 0, 0, 10), 8, UNICODE).plain == "█" * 8
    assert blocks_bar(Blocks(10, 0, 1, 9), 4, UNICODE).plain == "████"
    assert blocks_bar(Blocks(0, 0, 0, 0), 4, UNICODE).plain == "    "


def test_a_trend_is_scaled_to_its_highest() -> None:
    assert sparkline([None, 0.0, 5.0, 10.0], UNICODE).plain == " ▁▅█"
    assert sparkline([0.0, 0.0], UNICODE).plain == "▁▁"
    assert sparkline([0.5, 2.0], UNICODE, 1.0).plain == "▅█"


def test_a_long_name_keeps_both_ends() -> None:
    assert shorten("octavo-decode-7d9f8b6c5-x2x7k", 13, UNICODE) == "octavo…-x2x7k"
    assert shorten("decode-0", 8, UNICODE) == "decode-0"
