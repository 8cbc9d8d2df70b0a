"""Log lines for people and for machines."""

import io
import json
import logging

import pytest

from octavo.logs import check_log_settings, log_to_stderr

FIELDS = {"request_id": "r\n\x1b[31m", "status": "OK", "total_s": 0.12345678, "field": None, "n": 3}


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def restored() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_text_ends_in_fields_and_callers_cannot_break_a_line(stream: io.StringIO) -> None:
    log_to_stderr("info", "text", stream)
    logging.getLogger("octavo.x").info("request", extra={"fields": FIELDS})
    logging.getLogger("octavo.x").info("%s joined", "decode-0")
    logging.getLogger("octavo.x").debug("unseen")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(
        r'INFO octavo.x: request request_id="r\n\u001b[31m" status=OK total_s=0.123457 n=3'
    )
    assert second.endswith("INFO octavo.x: decode-0 joined")


def test_json_has_an_object_a_line(stream: io.StringIO) -> None:
    log_to_stderr("debug", "json", stream)
    logging.getLogger("octavo.x").debug("request", extra={"fields": FIELDS})
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("octavo.x").exception("a defect")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "debug",
        "logger": "octavo.x",
        "message": "request",
        "request_id": FIELDS["request_id"],
        "status": "OK",
        "total_s": 0.123457,
        "n": 3,
    }
    assert second["level"] == "error" and "KeyError: 'k'" in second["exception"]


@pytest.mark.parametrize(("level", "format"), [("loud", "text"), ("info", "xml")])
def test_unknown_settings_are_refused_by_name(level: str, format: str) -> None:
    with pytest.raises(ValueError, match=r"log_(level|format) must be one of"):
        check_log_settings(level, format)
