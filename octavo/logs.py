"""How every role writes its log: one line an event on standard error, as text or as JSON.

    logger.info("request", extra={"fields": {"request_id": "r", "status": "OK"}})

    text  2026-01-31 12:00:00,000 INFO octavo.router.inference: request request_id=r status=OK
    json  {"time": "2026-01-31T12:00:00.000+00:00", "level": "info", "logger": ..., "message":
          "request", "request_id": "r", "status": "OK"}

What a caller wrote cannot end a line or colour a terminal: such values are quoted.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
# At debug they tell each request's headers, or how their own loops run.
_LOUD_LIBRARIES = ("asyncio", "httpcore", "httpx", "urllib3", "filelock", "numba", "uvicorn")
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


def log_to_stderr(level: str, format: str, stream: TextIO | None = None) -> None:
    """Set the root logger up; `level` and `format` are of LEVELS and FORMATS."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _LOUD_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def check_log_settings(level: str, format: str) -> None:
    """Raise ValueError, naming the setting, unless `log_to_stderr` takes them."""
    for name, value, known in (("log_level", level, LEVELS), ("log_format", format, FORMATS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


class TextFormatter(logging.Formatter):
    """For people: the message, then name=value of each field."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        pairs = [f" {name}={_text(value)}" for name, value in _fields(record).items()]
        return line + "".join(pairs)


class JsonFormatter(logging.Formatter):
    """For machines: an object a line; a traceback is its member `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        members |= {name: _rounded(value) for name, value in _fields(record).items()}
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Those that are known: a field of None says nothing."""
    fields: dict[str, object] = getattr(record, "fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: object) -> str:
    text = str(_rounded(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _rounded(value: object) -> object:
    """Seconds to the microsecond."""
    return round(value, 6) if isinstance(value, float) else value
