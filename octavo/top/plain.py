"""One snapshot without a live screen: for people as a picture, for programs as JSON."""

import dataclasses
import json
from enum import Enum
from typing import Any

from octavo.top.history import History


def to_json(history: History, address: str) -> str:
    """Everything that was told, counters included, and the rates of the last interval.

    Rates are null where they are not known: of the service if there was one snapshot, of a worker
    that did not tell its counters twice.
    """
    snapshot = history.latest
    assert snapshot is not None
    told = dataclasses.asdict(snapshot)
    del told["taken_at"]
    last = history.last
    rates = last.workers if last else {}
    for worker in told["workers"]:
        found = rates.get(worker["worker_id"])
        worker["rates"] = found and dataclasses.asdict(found)
    for process in (told["router"], *told["workers"]):
        process["epoch"] = str(process["epoch"])  # many readers' numbers end at 2^53
    told = {"address": address, "interval_s": last.seconds if last else None} | told
    told["router"]["rates"] = last and {
        "requests_per_s": last.per_s("requests"),
        "prompt_tokens_per_s": last.per_s("prompt_tokens"),
        "completion_tokens_per_s": last.per_s("completion_tokens"),
    }
    return json.dumps(told, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is no JSON")
