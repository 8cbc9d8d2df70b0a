"""Many Decode calls in one stream: each is a lease, and a broken stream ends them all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.router.many_calls import ManyCall, ManyCalls
from octavo.rpc.channels import open_channel, server_options
from octavo.rpc.errors import Overloaded, errors_to_status
from octavo.worker.many_calls import MAX_UNSENT, Call, DecodeContext, serve_many

START = worker_pb2.DecodeRequest(start=worker_pb2.DecodeRequest.Start())
STOP = worker_pb2.DecodeRequest(stop=worker_pb2.DecodeRequest.Stop(samples=[0]))
STARTED = worker_pb2.DecodeResponse(started=worker_pb2.DecodeResponse.Started())


class Leases(worker_pb2_grpc.DecodeServiceServicer):
    """Each call says Started and ends with Stop; `num_held` are open."""

    def __init__(self) -> None:
        self.num_held = 0
        self.num_streams = 0
        self.refusal: Exception | None = None

    async def DecodeMany(self, _: object, context: Any) -> None:
        self.num_streams += 1
        await serve_many(context, self.Decode)

    async def Decode(self, _: object, context: DecodeContext) -> None:
        async with errors_to_status(context):
            await context.read()
            if self.refusal is not None:
                raise self.refusal
            self.num_held += 1
            try:
                await context.write(STARTED)
                await context.read()
            finally:
                self.num_held -= 1

    async def wait_held(self, number: int) -> None:
        while self.num_held != number:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    leases: Leases | None = None,
) -> AsyncIterator[tuple[Leases, ManyCalls, grpc.aio.Server]]:
    server, leases = grpc.aio.server(options=server_options()), leases or Leases()
    worker_pb2_grpc.add_DecodeServiceServicer_to_server(leases, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(60), open_channel(f"127.0.0.1:{port}") as channel:
        yield leases, ManyCalls(worker_pb2_grpc.DecodeServiceStub(channel)), server
    await server.stop(0)


async def started(calls: ManyCalls, timeout_s: float = 60.0) -> ManyCall:
    call = calls.call(timeout_s)
    await call.write(START)
    assert (await anext(call)).HasField("started")
    return call


async def test_calls_share_one_stream_and_end_one_by_one() -> None:
    async with serving() as (leases, calls, _):
        first, second = await started(calls), await started(calls)
        assert (leases.num_held, leases.num_streams) == (2, 1)
        await first.write(STOP)
        assert [response async for response in first] == []
        await leases.wait_held(1)
        await second.write(STOP)
        assert [response async for response in second] == []


async def test_a_cancelled_call_gives_back_its_lease_alone() -> None:
    async with serving() as (leases, calls, _):
        first, second = await started(calls), await started(calls)
        assert first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(first)
        await leases.wait_held(1)
        assert not first.cancel()
        await second.write(STOP)
        assert [response async for response in second] == []


async def test_a_lost_connection_ends_every_lease() -> None:
    async with serving() as (leases, calls, _):
        for _ in range(3):
            await started(calls)
        assert calls._stream is not None
        calls._stream._rpc.cancel()
        await leases.wait_held(0)
        assert await started(calls) is not None  # over a new stream
        assert leases.num_streams == 2


async def test_a_worker_that_ends_makes_every_call_unavailable() -> None:
    async with serving() as (_, calls, server):
        open_calls = [await started(calls) for _ in range(3)]
        await server.stop(0)
        for call in open_calls:
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await anext(call)
            assert lost.value.code() is not grpc.StatusCode.OK


async def test_a_calls_time_ends_it_alone() -> None:
    async with serving() as (leases, calls, _):
        lasting, short = await started(calls), await started(calls, timeout_s=1.0)
        with pytest.raises(grpc.aio.AioRpcError) as expired:
            await anext(short)
        assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await leases.wait_held(1)
        await lasting.write(STOP)
        assert [response async for response in lasting] == []


async def test_a_status_comes_with_its_details() -> None:
    async with serving() as (leases, calls, _):
        leases.refusal = Overloaded("too much waits", 2.5)
        call = calls.call(60.0)
        await call.write(START)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(call)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(refused.value)  # type: ignore[arg-type]
        assert status is not None
        assert status.message == "too much waits"
        assert len(status.details) == 2


class TokenWriter(Leases):
    """Each call writes tokens without waiting as long as there is room, then by waiting."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.num_refused = 0

    async def Decode(self, _: object, context: DecodeContext) -> None:
        assert isinstance(context, Call)
        await context.read()
        for index in range(self.num_tokens):
            if not context.write_tokens(index, (index + 7,)):
                self.num_refused += 1
                tokens = worker_pb2.TokenDelta(first_index=index, token_ids=[index + 7])
                await context.write(worker_pb2.DecodeResponse(tokens=tokens))


async def test_tokens_written_without_waiting_come_in_order_and_are_bounded() -> None:
    writer = TokenWriter(num_tokens=MAX_UNSENT + 10)
    async with serving(writer) as (_, calls, _):
        open_calls = [calls.call(60.0) for _ in range(2)]
        for call in open_calls:
            await call.write(START)
        for call in open_calls:
            deltas = [response.tokens async for response in call]
            assert [delta.first_index for delta in deltas] == list(range(writer.num_tokens))
            assert [list(delta.token_ids) for delta in deltas] == [
                [index + 7] for index in range(writer.num_tokens)
            ]
    assert writer.num_refused > 0
