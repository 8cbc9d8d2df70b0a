"""Dead workers and a dead Redis under running requests; a worker that comes back: C07."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from end_to_end.processes import Processes, running_processes
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient, OctavoError
from octavo.client.completion import Completion
from octavo.inference.v1 import inference_pb2_grpc
from octavo.inference.v1.inference_pb2 import GenerateRequest, SamplingParams, TokenIds
from registry.redis_server import RedisServer
from service import get_worker

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A dead worker's requests have ended by then.
GONE_S = 5.0
NUM_LONG = 1500


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Processes, RedisServer]]:
    """2P2D and a Redis, every one a process; a long prefill takes thousands of steps."""
    folder = tmp_path_factory.mktemp("run")
    # A busy machine must not make the index look empty.
    env = {"OCTAVO_NUM_BLOCKS": "512", "OCTAVO_LOOKUP_BUDGET_S": "2"}
    tiny_steps = {"OCTAVO_MAX_NUM_BATCHED_TOKENS": "2"}
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        url = redis.settings.url
        async with running_processes(
            llama, folder, redis_url=url, num_pairs=2, env=env, prefill_env=tiny_steps
        ) as processes:
            yield processes, redis


class Reader:
    """Reads one long stream and says how far it came and how it ended."""

    def __init__(self, client: AsyncClient, prompt: list[int]) -> None:
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.error: OctavoError | None = None
        self.ended_at = 0.0
        self._grown = asyncio.Condition()
        self._stream = client.stream(prompt, max_tokens=NUM_LONG, **GREEDY)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for delta in self._stream:
                self.token_ids += delta.token_ids
                async with self._grown:
                    self._grown.notify_all()
        except OctavoError as error:
            self.error = error
        self.ended_at = time.monotonic()
        async with self._grown:
            self._grown.notify_all()

    async def has(self, num_tokens: int) -> bool:
        """Wait for so many tokens; False if the stream failed first."""
        async with self._grown:
            await self._grown.wait_for(
                lambda: self.error is not None or len(self.token_ids) >= num_tokens
            )
        return self.error is None

    async def close(self) -> None:
        self._stream.close()
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_a_killed_decode_worker_ends_its_requests_and_no_others(
    fleet: tuple[Processes, RedisServer], llama: Path
) -> None:
    processes, _ = fleet
    async with AsyncClient(processes.address) as client:
        readers = [Reader(client, prompt_of(100, seed=f"killed {i}")) for i in range(8)]
        async with asyncio.timeout(30):
            assert all(await asyncio.gather(*(reader.has(3) for reader in readers)))
        killed_at = time.monotonic()
        await processes.kill("decode-0")
        # To the end: what the dead worker had sent before may still be on its way.
        async with asyncio.timeout(60):
            alive = await asyncio.gather(*(reader.has(NUM_LONG) for reader in readers))
        for reader, is_alive in zip(readers, alive, strict=True):
            if not is_alive:
                assert reader.error is not None
                assert reader.error.code is grpc.StatusCode.UNAVAILABLE
                assert "decode-0" in reader.error.message
                assert reader.ended_at - killed_at < GONE_S
            num_tokens = len(reader.token_ids)
            await reader.close()
            tokens = reader.token_ids[:num_tokens][:120]
            assert tokens == expected(llama, reader.prompt, len(tokens))
        assert True in alive and False in alive, "both workers had requests"
    await processes.wait_until_quiet(GONE_S)
    await processes.start("decode-0")
    await check_alive_and_quiet(processes, llama)


async def holder(processes: Processes, role: str) -> str:
    """Wait until a worker of the role holds blocks."""
    while True:
        for worker in await processes.workers(role):
            if worker.blocks.held:
                return str(worker.worker.worker_id)


async def test_a_killed_prefill_worker_ends_its_requests_and_frees_decode(
    fleet: tuple[Processes, RedisServer], llama: Path
) -> None:
    processes, _ = fleet
    request = GenerateRequest(
        token_ids=TokenIds(ids=prompt_of(3800, seed="killed in prefill")),
        sampling=SamplingParams(max_tokens=8, temperature=0.0),
    )
    # Not through our client, which would try again and get its answer from the other worker.
    async with grpc.aio.insecure_channel(processes.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        asked = asyncio.ensure_future(stub.Generate(request, timeout=60))
        async with asyncio.timeout(30):
            name = await holder(processes, "prefill")
            await holder(processes, "decode")
        killed_at = time.monotonic()
        await processes.kill(name)
        with pytest.raises(grpc.aio.AioRpcError, match=name) as failed:
            await asked
        assert time.monotonic() - killed_at < GONE_S
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    await processes.wait_until_quiet(GONE_S)
    await check_alive_and_quiet(processes, llama)  # the other one serves meanwhile
    await processes.start(name)
    await check_alive_and_quiet(processes, llama)


async def wait_until_indexed(redis: RedisServer, num_blocks: int) -> None:
    """Wait until Redis lists so many blocks."""
    async with asyncio.timeout(5), Redis(unix_socket_path=str(redis.socket_path)) as connection:
        while len(await connection.keys("octavo:*:b:*")) < num_blocks:
            await asyncio.sleep(0.01)


async def test_a_restarted_prefill_worker_owns_nothing_of_its_former_life(
    fleet: tuple[Processes, RedisServer], llama: Path
) -> None:
    """C07: same address, other hash seed: exact, and found only where it really is."""
    processes, redis = fleet
    prompts = [prompt_of(200, seed=f"C07 {i}") for i in range(8)]
    wanted = [expected(llama, prompt, 1) for prompt in prompts]
    num_cached = 192  # whole blocks below the prompt's last token
    async with AsyncClient(processes.address, timeout_s=30) as client:

        async def ask_all() -> list[Completion]:
            replies = [await client.generate(p, max_tokens=1, **GREEDY) for p in prompts]
            assert [reply.token_ids for reply in replies] == wanted
            return replies

        async with Redis(unix_socket_path=str(redis.socket_path)) as connection:
            num_before = len(await connection.keys("octavo:*:b:*"))
        owners = [reply.timing.prefill_worker for reply in await ask_all()]
        await wait_until_indexed(redis, num_before + 12 * len(prompts))
        # The router is another process, with a hash seed of its own: its keys are the same.
        for reply, owner in zip(await ask_all(), owners, strict=True):
            assert reply.timing.prefill_worker == owner
            assert reply.usage.cached_prompt_tokens == num_cached
        name = owners[0]
        (address,) = [a for a in processes.worker_addresses("prefill") if name in a]
        epoch = (await get_worker(address)).worker.epoch
        await processes.kill(name)
        await processes.start(name, PYTHONHASHSEED="12345")
        assert (await get_worker(address)).worker.epoch != epoch
        for reply, owner in zip(await ask_all(), owners, strict=True):
            assert reply.usage.cached_prompt_tokens == (0 if owner == name else num_cached)
        async with asyncio.timeout(5):
            while any(r.usage.cached_prompt_tokens != num_cached for r in await ask_all()):
                pass
    await check_alive_and_quiet(processes, llama)


async def test_no_request_fails_when_redis_dies_or_comes_back_empty(
    fleet: tuple[Processes, RedisServer], llama: Path
) -> None:
    processes, redis = fleet
    async with AsyncClient(processes.address, timeout_s=30) as client:
        running = Reader(client, prompt_of(90, seed="redis"))
        async with asyncio.timeout(20):
            assert await running.has(3)
        for change in (redis.kill, redis.start):
            change()
            for length in (20, 200):
                prompt = prompt_of(length, seed=f"redis {change.__name__}")
                for _ in range(2):
                    reply = await client.generate(prompt, max_tokens=8, **GREEDY)
                    assert reply.token_ids == expected(llama, prompt, 8)
        async with asyncio.timeout(20):
            # A fast machine may have come to the end by now.
            assert await running.has(min(len(running.token_ids) + 20, NUM_LONG))
        await running.close()
    await check_alive_and_quiet(processes, llama)
