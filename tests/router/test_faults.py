"""Workers that die or hang, and clients that leave: a status soon, and nothing held."""

import asyncio
import time

import grpc
import pytest

from octavo.inference.v1.inference_pb2 import (
    GenerateRequest,
    SamplingParams,
    StreamGenerateRequest,
)
from router.faults import (
    LONG,
    TOKENS,
    StartFleet,
    failure,
    first_token,
    rest,
    start,
)
from scripted_workers import EOS


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
            messages = [message async for message in rest(call)]
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
            assert [message async for message in rest(call)][-1].HasField("completed")


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
