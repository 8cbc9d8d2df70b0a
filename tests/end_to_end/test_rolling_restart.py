"""Workers restarted one by one under load: no request of a client with default retries is lost."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from end_to_end.fleet import Fleet, running_fleet
from end_to_end.processes import running_processes
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient
from octavo.decode_worker.server import DecodeWorker
from octavo.inference.v1.inference_pb2 import (
    GenerateRequest,
    SamplingParams,
    StreamGenerateRequest,
    TokenIds,
)
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from octavo.prefill_worker.server import PrefillWorker
from octavo.worker.start import drain

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUM_TOKENS = 32
PROMPTS = [prompt_of(length, seed="rolling") for length in (5, 60, 150, 300)]


@asynccontextmanager
async def load(address: str, model: Path, num_clients: int = 4) -> AsyncIterator[list[int]]:
    """Clients that ask without a pause; yields a list with a number for each good answer."""
    wanted = [expected(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    stop = asyncio.Event()
    done: list[int] = []

    async def ask(client: AsyncClient, number: int) -> None:
        while not stop.is_set():
            number += 1
            index = number % len(PROMPTS)
            fields: dict[str, Any] = {"max_tokens": NUM_TOKENS, "timeout_s": 60, **GREEDY}
            if number % 2:
                reply = await client.generate(PROMPTS[index], **fields)
                token_ids = list(reply.token_ids)
            else:
                stream = client.stream(PROMPTS[index], **fields)
                token_ids = [token async for delta in stream for token in delta.token_ids]
            assert token_ids == wanted[index]
            done.append(number)

    async with AsyncClient(address) as client:
        tasks = [asyncio.create_task(ask(client, number)) for number in range(num_clients)]
        try:
            yield done
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def some_more(done: list[int], count: int = 8) -> None:
    """Wait for so many answers from now on."""
    enough = len(done) + count
    async with asyncio.timeout(60):
        while len(done) < enough:
            await asyncio.sleep(0.01)


async def drained(worker: PrefillWorker | DecodeWorker) -> None:
    """What SIGTERM does to a worker's process, up to its last stream."""
    await drain(worker.server, worker.streams, worker.attempts, 30)
    assert worker.streams.num_open == 0


async def test_workers_that_drain_under_load_lose_nothing(llama: Path) -> None:
    async with running_fleet(llama, 2, 2) as fleet, load(fleet.address, llama) as done:
        await some_more(done)
        await asyncio.gather(drained(fleet.prefills[0]), drained(fleet.decodes[0]))
        served = fleet.decodes[0].streams.num_served
        await some_more(done, 20)
        assert fleet.decodes[0].streams.num_served == served, "it is asked no more"
        assert served > 0


async def first_of_a_long_stream(fleet: Fleet, stub: Any) -> Any:
    sampling = SamplingParams(max_tokens=3000, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(token_ids=TokenIds(ids=PROMPTS[1]), sampling=sampling)
    call = stub.StreamGenerate(StreamGenerateRequest(request=request), timeout=60)
    await call.read()
    return call


@pytest.mark.parametrize("who", ["router", "decode"])
async def test_a_stream_that_outlives_the_grace_ends_unavailable_with_a_retry_hint(
    llama: Path, who: str
) -> None:
    async with running_fleet(llama) as fleet, grpc.aio.insecure_channel(fleet.address) as channel:
        call = await first_of_a_long_stream(fleet, InferenceServiceStub(channel))
        worker = fleet.decodes[0]
        ending: Coroutine[Any, Any, None]
        if who == "router":
            await fleet.router.end_requests_in(0.6)
            ending = fleet.router.server.drain(0.6)
        else:
            ending = drain(worker.server, worker.streams, worker.attempts, 0.2)
        draining = asyncio.create_task(ending)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        status = rpc_status.from_call(ended.value)  # type: ignore[arg-type]
        assert status is not None
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in status.details)
        assert retry.retry_delay.ToTimedelta().total_seconds() > 0
        await draining
        await fleet.wait_until_quiet()


@pytest.mark.slow
async def test_worker_processes_restarted_in_turn_under_load_lose_nothing(
    llama: Path, tmp_path: Path
) -> None:
    """2P2D, each ended with SIGTERM and started again. Routers too: tests/charts/cluster."""
    async with running_processes(
        llama, tmp_path, num_pairs=2, env={"OCTAVO_NUM_BLOCKS": "512"}
    ) as processes:
        async with load(processes.address, llama) as done:
            for name in [name for name in processes.children if name != "router"]:
                await some_more(done)
                assert await processes.stop(name) == 0
                await some_more(done)
                await processes.start(name)
            await some_more(done)
        await check_alive_and_quiet(processes, llama)
