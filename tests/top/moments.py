"""Moments of a service that is not there: messages as a router sends them."""

from typing import Any

from octavo.inference.v1 import fleet_pb2
from octavo.top.history import History
from octavo.top.snapshot import Snapshot


def worker(worker_id: str, role: str, counters: dict[str, Any] | None, **fields: Any) -> Any:
    """Ready, with a pool of 256 blocks, 64 of them held and 128 cached."""
    message = fleet_pb2.Worker(
        worker_id=worker_id,
        address=f"10.0.0.1:{50061 + sum(worker_id.encode()) % 100}",
        epoch=1,
        role=fleet_pb2.FleetRole.Value(f"FLEET_ROLE_{role.upper()}"),
        state=fleet_pb2.WORKER_STATE_READY,
        dtype="bfloat16",
        quantization="int8",
        block_size=16,
        blocks=fleet_pb2.Worker.Blocks(total=256, free=64, cached=128, held=64),
    )
    if counters is not None:
        message.counters.CopyFrom(fleet_pb2.WorkerCounters(**counters))
    message.MergeFrom(fleet_pb2.Worker(**fields))
    return message


def gone(worker_id: str, role: str) -> Any:
    """One that nobody can reach."""
    return fleet_pb2.Worker(
        worker_id=worker_id,
        address="10.0.0.9:50062",
        role=fleet_pb2.FleetRole.Value(f"FLEET_ROLE_{role.upper()}"),
        state=fleet_pb2.WORKER_STATE_UNREACHABLE,
        problem="UNAVAILABLE: failed to connect to all addresses; last error: connection refused",
    )


def moment(
    workers: list[Any], counters: dict[str, int], requests: int = 0, **router: Any
) -> fleet_pb2.GetFleetResponse:
    """The router's state with these workers, and so many running requests."""
    message = fleet_pb2.GetFleetResponse(
        router=fleet_pb2.Router(
            epoch=7,
            version="0.1.0",
            model="smollm2-135m-instruct",
            is_ready=True,
            running_requests=requests,
            counters=fleet_pb2.RequestCounters(**counters),
            **router,
        ),
        workers=workers,
    )
    message.router.uptime.FromSeconds(3723)
    for index in range(requests):
        request = message.requests.add(
            request_id=f"request-{index:08x}-of-a-caller",
            prompt_tokens=100 + index,
            completion_tokens=7 * index,
            prefill_worker="prefill-0",
            decode_worker="decode-0" if index else "",
        )
        request.age.FromMilliseconds(90_000 - 700 * index)
    return message


def history_of(*messages: fleet_pb2.GetFleetResponse, interval_s: float = 1.0) -> History:
    """These moments, so many seconds apart."""
    history = History()
    for index, message in enumerate(messages):
        history.add(Snapshot.of(message, 1000.0 + index * interval_s))
    return history


def busy_minute(num_prefills: int = 1, num_decodes: int = 2, requests: int = 12) -> History:
    """A minute of a service whose load comes in waves."""
    messages = []
    totals = dict.fromkeys(("requests", "completed", "prompt_tokens", "completion_tokens"), 0)
    for second in range(62):
        wave = 1 + (second * 7 % 23) / 10
        totals["requests"] += round(3 * wave)
        totals["completed"] += round(2.5 * wave)
        totals["prompt_tokens"] += round(900 * wave)
        totals["completion_tokens"] += round(220 * wave)
        shares = {
            "cached_prompt_tokens": totals["prompt_tokens"] * 5 // 8,
            "cached_on_prefill_worker": totals["prompt_tokens"] * 5 // 8,
            "cached_on_decode_worker": totals["prompt_tokens"] // 4,
            "transferred_prompt_tokens": totals["prompt_tokens"] * 3 // 4,
        }
        done = {"computing_steps": 30 * second, "step_seconds": 0.93 * second}
        workers = [
            worker(
                f"prefill-{index}",
                "prefill",
                {"computing_steps": second, "step_seconds": 0.8 * second}
                | {"prompt_tokens_computed": 340 * second},
                running_sequences=1 + index,
                waiting_sequences=3,
                waiting_prompt_tokens=1400,
            )
            for index in range(num_prefills)
        ]
        workers += [
            worker(
                f"decode-{index}",
                "decode",
                done
                | {"tokens_generated": 230 * second, "bytes_transferred": 9_400_000 * second}
                | {"preemptions": second // 20},
                running_sequences=6,
                blocks=fleet_pb2.Worker.Blocks(held=20 * (index + 1)),
            )
            for index in range(num_decodes)
        ]
        queued = {"queued_prompt_tokens": 1400}
        messages.append(moment(workers, totals | shares, requests, **queued))
    return history_of(*messages)
