"""Workers that refuse, die or hang, and clients that leave: a status soon, and nothing held."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.inference.v1.inference_pb2 import (
    GenerateRequest,
    SamplingParams,
    StreamGenerateRequest,
    TokenIds,
)
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
from scripted_workers import EOS

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]

LONG = GenerateRequest(token_ids=TokenIds(ids=range(3, 103)))
SHORT = GenerateRequest(token_ids=TokenIds(ids=range(3, 30)))
TOKENS = [40] * 200


def start(fleet: Any, request: GenerateRequest = LONG, **options: Any) -> Any:
    return fleet.stub.StreamGenerate(StreamGenerateRequest(request=request), **options)


async def first_token(call: Any) -> None:
    """Read up to the first token."""
    async with asyncio.timeout(5):
        while not (await call.read()).HasField("delta"):
            pass


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """Read on until the call fails."""
    async with asyncio.timeout(10):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            while await call.read() is not grpc.aio.EOF:
                pass
    return failed.value


@pytest.mark.parametrize("hold", [0, 1, 5])
async def test_client_cancel_ends_both_legs_within_a_second(
    start_fleet: StartFleet, hold: int
) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.decode.hold_before(hold)
        call = start(fleet)
        await first_token(call)
        async with asyncio.timeout(1):
            await fleet.decode.wait_open(1)
        call.cancel()
        await fleet.quiet()


async def test_cancel_while_the_prompt_waits_ends_both_legs(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.prefill.hold_before(0)
        fleet.decode.holds_pull = asyncio.Event()
        call = start(fleet)
        async with asyncio.timeout(5):
            await fleet.prefill.wait_open(1)
            await fleet.decode.wait_open(1)
        call.cancel()
        await fleet.quiet()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_dead_worker_ends_its_requests_unavailable(
    start_fleet: StartFleet, role: str, streamed: bool
) -> None:
    async with start_fleet(TOKENS) as fleet:
        fleet.decode.holds_pull = asyncio.Event()  # both legs are open
        if not streamed:
            fleet.prefill.hold_before(0)
        call = start(fleet)
        if streamed:
            await first_token(call)
        async with asyncio.timeout(5):
            await fleet.prefill.wait_open(1)
            await fleet.decode.wait_open(1)
        began = time.monotonic()
        await getattr(fleet, role).die()
        error = await failure(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert f"octavo {role}-worker" in (error.details() or "")
        assert time.monotonic() - began < 5
        await fleet.quiet()


async def test_stuck_worker_ends_its_requests_unavailable(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS, stuck_after_s=0.5) as fleet:
        release = fleet.decode.hold_before(3)
        fleet.decode.set_load(steps=7, running_sequences=1)
        call = start(fleet)
        error = await failure(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "made no step" in (error.details() or "")
        await fleet.quiet()
        # It takes no new work until it steps again.
        refused = await failure(start(fleet))
        assert "no decode worker" in (refused.details() or "")
        release.set()
        fleet.decode.set_load(steps=8)
        async with asyncio.timeout(5):
            while not fleet.router.workers.decodes:
                await asyncio.sleep(0.01)
        await fleet.stream(LONG)


async def test_worker_that_steps_while_it_waits_is_not_stuck(start_fleet: StartFleet) -> None:
    async with start_fleet([40, EOS], stuck_after_s=0.3) as fleet:
        fleet.decode.holds_pull = asyncio.Event()
        call = start(fleet)
        await first_token(call)
        for steps in range(1, 11):
            fleet.decode.set_load(steps=steps, running_sequences=1)
            await asyncio.sleep(0.1)  # three times the limit in all
        fleet.decode.holds_pull.set()
        async with asyncio.timeout(5):
            messages = [message async for message in _rest(call)]
        assert messages[-1].HasField("completed")


async def test_idle_worker_is_never_stuck(start_fleet: StartFleet) -> None:
    async with start_fleet([40, EOS], stuck_after_s=0.2) as fleet:
        fleet.decode.set_load(steps=7)
        await asyncio.sleep(0.5)
        fleet.decode.set_load(running_sequences=1)  # the clock starts here
        await fleet.stream(LONG)


async def test_worker_that_falls_silent_ends_its_requests_unavailable(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet(TOKENS, stuck_after_s=0.5) as fleet:
        fleet.decode.hold_before(3)
        may_speak = fleet.decode.hold_samples()  # the last one said that there is no work
        error = await failure(start(fleet))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "said nothing" in (error.details() or "")
        await fleet.quiet()
        may_speak.set()
        async with asyncio.timeout(5):
            while not fleet.router.workers.decodes:
                await fleet.router.workers.changed.wait()


async def test_a_router_that_stood_still_blames_no_worker(start_fleet: StartFleet) -> None:
    async with start_fleet([40, EOS], stuck_after_s=0.3) as fleet:
        release = fleet.decode.hold_before(1)
        call = start(fleet)
        await first_token(call)
        fleet.decode.set_load(steps=1, running_sequences=1)
        async with asyncio.timeout(5):
            while fleet.router.workers.decodes[0].load.steps != 1:
                await asyncio.sleep(0.01)
        time.sleep(1.0)  # the fault: workers and router are stopped and go on
        fleet.decode.set_load(steps=2)
        release.set()
        async with asyncio.timeout(5):
            assert [message async for message in _rest(call)][-1].HasField("completed")


async def _rest(call: Any) -> Any:
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message


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
    async with start_fleet([40, 41, EOS], prefills=2, decodes=2) as fleet:
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
            await fleet.decodes[1].wait_open(1)
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
            assert [message async for message in _rest(call)][-1].HasField("completed")
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


async def test_client_that_reads_nothing_is_ended(start_fleet: StartFleet) -> None:
    async with start_fleet(TOKENS, slow_reader_s=0.5) as fleet:
        fleet.decode.hold_before(900)  # by then no window of the connection has room
        request = GenerateRequest(
            token_ids=LONG.token_ids,
            request_id="x" * 200,
            sampling=SamplingParams(max_tokens=920),
        )
        method = "/octavo.inference.v1.InferenceService/StreamGenerate"
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(fleet.address, options=options) as channel:
            call = channel.unary_stream(method)(
                StreamGenerateRequest(request=request).SerializeToString()
            )
            await call.read()
            async with asyncio.timeout(5):
                await fleet.decode.wait_open(1)
                await fleet.decode.wait_open(0)
            await fleet.quiet()
            with pytest.raises(grpc.aio.AioRpcError, match="took no message") as ended:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert ended.value.code() is grpc.StatusCode.ABORTED


def retry_delay_s(error: grpc.aio.AioRpcError) -> float:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    for detail in status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return retry.retry_delay.ToTimedelta().total_seconds()
    raise AssertionError("no RetryInfo")
