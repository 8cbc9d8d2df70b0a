"""Many Decode calls in one stream: each is a lease, and a broken stream ends them all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_status import rpc_status

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.internal.v1alpha1.worker_pb2 import DecodeRequest, DecodeResponse
from octavo.router.many_calls import MAX_MESSAGE_BYTES, ManyCall, ManyCalls
from octavo.rpc.channels import open_channel, server_options
from octavo.rpc.errors import Overloaded, errors_to_status
from octavo.worker.many_calls import CallContext, serve_many_decodes

START = DecodeRequest(start=DecodeRequest.Start())
STOP = DecodeRequest(stop=DecodeRequest.Stop(samples=[0]))
STARTED = DecodeResponse(started=DecodeResponse.Started())
Calls = ManyCalls[DecodeRequest, DecodeResponse]


class Ear:
    """Listens to a call."""

    def __init__(self) -> None:
        self.call: ManyCall[DecodeRequest, DecodeResponse] | None = None
        self.responses: asyncio.Queue[DecodeResponse] = asyncio.Queue()
        self.ended: asyncio.Future[Exception | None] = asyncio.Future()
        self.defect: Exception | None = None

    def take(self, response: DecodeResponse) -> None:
        if self.defect is not None:
            raise self.defect
        self.responses.put_nowait(response)

    def end(self, error: Exception | None) -> None:
        self.ended.set_result(error)

    def stop(self) -> None:
        assert self.call is not None
        self.call.send(STOP)

    def cancel(self) -> None:
        assert self.call is not None
        self.call.cancel()


class Counted:
    """A stream whose messages are counted."""

    def __init__(self, context: Any) -> None:
        self.num_messages = 0
        self.write = context.write
        self._context = context

    async def read(self) -> object:
        self.num_messages += 1
        return await self._context.read()


class Leases(worker_pb2_grpc.DecodeServiceServicer):
    """Each call says Started and ends with Stop; `num_held` are open."""

    def __init__(self) -> None:
        self.num_held = 0
        self.streams: list[Counted] = []
        self.refusal: Exception | None = None

    async def DecodeMany(self, _: object, context: Any) -> None:
        counted: Any = Counted(context)
        self.streams.append(counted)
        await serve_many_decodes(counted, self.Decode)

    async def Decode(self, _: object, context: CallContext[DecodeResponse]) -> None:
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
async def serving() -> AsyncIterator[tuple[Leases, Calls, grpc.aio.Server]]:
    server, leases = grpc.aio.server(options=server_options()), Leases()
    worker_pb2_grpc.add_DecodeServiceServicer_to_server(leases, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(60), open_channel(f"127.0.0.1:{port}") as channel:
        stub = worker_pb2_grpc.DecodeServiceStub(channel)
        yield leases, ManyCalls(stub.DecodeMany, worker_pb2.DecodeManyRequest), server
    await server.stop(0)


def start(calls: Calls, timeout_s: float = 60.0, request: DecodeRequest = START) -> Ear:
    ear = Ear()
    ear.call = calls.call(request, timeout_s, ear)
    return ear


async def started(calls: Calls, timeout_s: float = 60.0) -> Ear:
    ear = start(calls, timeout_s)
    assert (await ear.responses.get()).HasField("started")
    return ear


async def test_calls_share_one_stream_and_end_one_by_one() -> None:
    async with serving() as (leases, calls, _):
        first, second = await started(calls), await started(calls)
        assert (leases.num_held, len(leases.streams)) == (2, 1)
        first.stop()
        assert await first.ended is None
        await leases.wait_held(1)
        second.stop()
        assert await second.ended is None
        assert first.responses.empty() and second.responses.empty()


async def test_a_cancelled_call_gives_back_its_lease_alone() -> None:
    async with serving() as (leases, calls, _):
        first, second = await started(calls), await started(calls)
        first.cancel()
        await leases.wait_held(1)
        first.cancel()  # no more than once
        second.stop()
        assert await second.ended is None
        assert not first.ended.done()


async def test_a_call_cancelled_at_once_holds_nothing() -> None:
    async with serving() as (leases, calls, _):
        start(calls).cancel()
        second = await started(calls)
        await leases.wait_held(1)
        second.stop()
        assert await second.ended is None


async def test_a_lost_connection_ends_every_lease() -> None:
    async with serving() as (leases, calls, _):
        ears = [await started(calls) for _ in range(3)]
        assert calls._stream is not None
        calls._stream._rpc.cancel()
        await leases.wait_held(0)
        for ear in ears:
            assert isinstance(await ear.ended, grpc.aio.AioRpcError)
        await started(calls)  # over a new stream
        assert len(leases.streams) == 2


async def test_a_worker_that_ends_makes_every_call_unavailable() -> None:
    async with serving() as (_, calls, server):
        ears = [await started(calls) for _ in range(3)]
        await server.stop(0)
        for ear in ears:
            lost = await ear.ended
            assert isinstance(lost, grpc.aio.AioRpcError)
            assert lost.code() is not grpc.StatusCode.OK


async def test_a_calls_time_ends_it_alone() -> None:
    async with serving() as (leases, calls, _):
        lasting, short = await started(calls), await started(calls, timeout_s=1.0)
        expired = await short.ended
        assert isinstance(expired, grpc.aio.AioRpcError)
        assert expired.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await leases.wait_held(1)
        lasting.stop()
        assert await lasting.ended is None


async def test_a_status_comes_with_its_details() -> None:
    async with serving() as (leases, calls, _):
        leases.refusal = Overloaded("too much waits", 2.5)
        refused = await start(calls).ended
        assert isinstance(refused, grpc.aio.AioRpcError)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(refused)  # type: ignore[arg-type]
        assert status is not None
        assert status.message == "too much waits"
        assert len(status.details) == 2


async def test_a_listeners_defect_ends_its_call_alone() -> None:
    async with serving() as (leases, calls, _):
        other, broken = await started(calls), Ear()
        broken.defect = RuntimeError("a defect")
        broken.call = calls.call(START, 60.0, broken)
        assert await broken.ended is broken.defect
        await leases.wait_held(1)
        other.stop()
        assert await other.ended is None


async def test_large_requests_do_not_share_a_message() -> None:
    async with serving() as (leases, calls, _):
        large = DecodeRequest()
        large.start.sequence.group_key = bytes(MAX_MESSAGE_BYTES // 2)
        ears = [start(calls, request=large) for _ in range(20)]  # together beyond a message's limit
        for ear in ears:
            await ear.responses.get()
        assert leases.num_held == 20
        assert leases.streams[0].num_messages > 10
