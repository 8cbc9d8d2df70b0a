"""Workers that refuse, drain or are too few: another one is asked, or the caller is told why."""

import asyncio
import time

import grpc
import pytest

from octavo.rpc.errors import (
    Aborted,
    DataLoss,
    Draining,
    InvalidRequest,
    NoWorker,
    Overloaded,
    Precondition,
    RequestError,
)
from router.faults import (
    LONG,
    SHORT,
    TOKENS,
    StartFleet,
    failure,
    rest,
    retry_delay_s,
    start,
)
from scripted_workers import EOS


async def test_tail_too_long_for_decode_alone_gets_a_prefill_worker(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet([40, 41, EOS]) as fleet:
        fleet.decode.refuse_without_kv = Precondition("kv", "40 prompt tokens are missing")
        messages = await fleet.stream(SHORT)
        assert messages[-1].completed.usage.completion_tokens == 3
        first, second = fleet.decode.starts
        assert not first.HasField("kv") and second.HasField("kv")
        assert first.sequence.key.request_id == second.sequence.key.request_id
        assert first.sequence.key.attempt < second.sequence.key.attempt
        assert first.sequence.sampling == second.sequence.sampling


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_drains_is_passed_over(start_fleet: StartFleet, role: str) -> None:
    """Its refusal may come before the load sample that would have told the router."""
    decodes = 2 if role == "decode" else 1
    async with start_fleet([40, 41, EOS], prefills=2, decodes=decodes) as fleet:
        draining, other = {"prefill": fleet.prefills, "decode": fleet.decodes}[role]
        draining.refusal = Draining("this worker is draining")
        other.set_load(running_sequences=3, waiting_prefill_tokens=900)
        view = {w.facts.worker_id: w for w in fleet.router.workers.decodes}
        view |= {w.facts.worker_id: w for w in fleet.router.workers.prefills}
        async with asyncio.timeout(5):
            while not view[other.facts.worker.worker_id].load.running_sequences:
                await asyncio.sleep(0.01)
        # As real prefill workers, which wait for the pull of a decode worker that has accepted.
        releases = [prefill.hold_before(0) for prefill in fleet.prefills]
        first = asyncio.create_task(fleet.stream(LONG))
        async with asyncio.timeout(5):
            await fleet.decodes[-1].wait_open(1)
        for release in releases:
            release.set()
        for messages in [await first, await fleet.stream(LONG), await fleet.stream(LONG)]:
            assert messages[-1].completed.usage.completion_tokens == 3
        assert len(draining.specs) == 1, "once it refused it is asked no more"
        assert len(other.specs) == 3
        await fleet.quiet()


async def test_when_all_workers_drain_the_caller_is_told_when_to_come_back(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.decode.holds_pull = asyncio.Event()
        fleet.prefill.refusal = Draining("this worker is draining")
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "no prefill worker" in (error.details() or "")
        assert retry_delay_s(error) > 0
        await fleet.quiet()


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (InvalidRequest("sampling.max_tokens", "too long"), grpc.StatusCode.INVALID_ARGUMENT),
        (Overloaded("full", 3.0), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (DataLoss("bytes differ"), grpc.StatusCode.UNAVAILABLE),
        (Precondition("layout.dtype", "differs"), grpc.StatusCode.UNAVAILABLE),
        (Aborted("a newer attempt"), grpc.StatusCode.UNAVAILABLE),
        (NoWorker("draining"), grpc.StatusCode.UNAVAILABLE),
        (RequestError("a defect"), grpc.StatusCode.INTERNAL),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_refusal_of_a_leg_becomes_the_caller_s_status(
    start_fleet: StartFleet, role: str, refusal: RequestError, code: grpc.StatusCode
) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.prefill.hold_before(0)
        fleet.decode.holds_pull = asyncio.Event()
        getattr(fleet, role).refusal = refusal
        error = await failure(start(fleet))
        assert error.code() is code, error.details()
        if isinstance(refusal, InvalidRequest):
            assert error.details() == "too long"
        if isinstance(refusal, Overloaded):
            assert retry_delay_s(error) == 3.0
        await fleet.quiet()


async def test_overload_is_refused_at_once_with_a_time_to_come_back(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet([40, EOS], max_queued_tokens=250) as fleet:
        release = fleet.prefill.hold_before(0)
        fleet.decode.holds_pull = asyncio.Event()
        waiting = [start(fleet), start(fleet)]
        async with asyncio.timeout(5):
            await fleet.prefill.wait_open(2)
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_delay_s(error) > 0
        assert len(fleet.prefill.specs) == 2
        release.set()
        fleet.decode.holds_pull.set()
        for call in waiting:
            assert [message async for message in rest(call)][-1].HasField("completed")
        await fleet.stream(LONG)


async def test_deadline_goes_to_every_hop(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.decode.hold_before(2)
        began = time.monotonic()
        error = await failure(start(fleet, timeout=1.0))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0.5 < time.monotonic() - began < 3
        for worker in (fleet.prefill, fleet.decode):
            assert 0 < worker.deadlines[0] < 1.1
        await fleet.quiet()


async def test_request_without_a_deadline_gets_the_router_s(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS, max_request_s=0.5) as fleet:
        fleet.decode.hold_before(2)
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await fleet.quiet()


async def test_without_workers_the_answer_is_a_hint(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS, prefills=0, decodes=0) as fleet:
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "octavo decode-worker" in (error.details() or "")
    async with start_fleet(TOKENS, prefills=0) as fleet:
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "octavo prefill-worker" in (error.details() or "")
