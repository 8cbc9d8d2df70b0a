"""Workers that serve one stream a call, as those of an earlier version, are used like others."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest

from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_STOP_SEQUENCE,
    GenerateRequest,
    SamplingParams,
    StreamGenerateRequest,
    TokenIds,
)
from octavo.rpc.errors import Overloaded
from scripted_workers import EOS

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]
PROMPT = TokenIds(ids=range(3, 103))
LONG = GenerateRequest(token_ids=PROMPT)


async def test_every_token_comes_once_and_in_order(start_fleet: StartFleet) -> None:
    tokens = list(range(40, 60))
    async with start_fleet([*tokens, EOS], many_calls=False) as fleet:
        workers = fleet.router.workers
        assert not any(w.facts.serves_many_calls for w in workers.prefills + workers.decodes)
        messages = await fleet.stream(LONG)
        assert [i for message in messages for i in message.delta.token_ids] == [*tokens, EOS]
        assert messages[-1].completed.usage.transferred_prompt_tokens == 100
        await fleet.quiet()


async def test_a_client_that_cancels_ends_both_legs(start_fleet: StartFleet) -> None:
    async with start_fleet([40] * 200, many_calls=False) as fleet:
        fleet.decode.hold_before(1)
        fleet.decode.holds_pull = asyncio.Event()  # so that the prefill leg waits, too
        call = fleet.stub.StreamGenerate(StreamGenerateRequest(request=LONG))
        await call.read()
        async with asyncio.timeout(5):
            await fleet.prefill.wait_open(1)
            await fleet.decode.wait_open(1)
        call.cancel()
        await fleet.quiet()


async def test_a_stop_string_is_told_to_the_worker(start_fleet: StartFleet) -> None:
    async with start_fleet([], many_calls=False) as fleet:
        for worker in (fleet.prefill, fleet.decode):
            worker.token_ids = fleet.ids("The capital is Paris, of course.") * 50
        request = GenerateRequest(token_ids=PROMPT, sampling=SamplingParams(stop=["Pari"]))
        whole = await fleet.stub.Generate(request, timeout=10)
        assert whole.candidates[0].text == "The capital is "
        assert whole.candidates[0].finish_reason == FINISH_REASON_STOP_SEQUENCE
        assert fleet.decode.num_stops == 1
        await fleet.quiet()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_refusal_becomes_the_caller_s_status(start_fleet: StartFleet, role: str) -> None:
    async with start_fleet([40] * 200, many_calls=False) as fleet:
        fleet.prefill.hold_before(0)
        fleet.decode.holds_pull = asyncio.Event()
        getattr(fleet, role).refusal = Overloaded("full", 3.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet.stream(LONG)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await fleet.quiet()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_dead_worker_ends_its_requests_unavailable(
    start_fleet: StartFleet, role: str
) -> None:
    async with start_fleet([40] * 200, many_calls=False) as fleet:
        fleet.prefill.hold_before(0)
        fleet.decode.holds_pull = asyncio.Event()
        call = fleet.stub.StreamGenerate(StreamGenerateRequest(request=LONG))
        async with asyncio.timeout(5):
            await fleet.prefill.wait_open(1)
            await fleet.decode.wait_open(1)
        await getattr(fleet, role).die()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            async with asyncio.timeout(5):
                await call.read()
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"octavo {role}-worker" in (lost.value.details() or "")
        await fleet.quiet()
