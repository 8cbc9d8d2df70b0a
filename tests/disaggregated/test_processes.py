"""Workers that are killed, or told to end, while they hand over or decode."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from disaggregated.pair import ended, sequence
from disaggregated.processes import WorkerProcess, worker_process
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.transfer.namespace import SHM_FOLDER
from octavo.transfer.segment import sweep_dead_segments

SLOW_PREFILL = ("--max-num-batched-tokens", "4")


class Legs:
    """Both streams of one request."""

    def __init__(
        self, prefill: WorkerProcess, decode: WorkerProcess, spec: worker_pb2.SequenceSpec
    ) -> None:
        self.tokens: list[int] = []
        self._spec = spec
        self._prefill = worker_pb2_grpc.PrefillServiceStub(prefill.channel)
        self._decode = worker_pb2_grpc.DecodeServiceStub(decode.channel)

    def start(self, ref: worker_pb2.WorkerRef) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        return (
            asyncio.create_task(self._run_prefill()),
            asyncio.create_task(self._run_decode(worker_pb2.KvHandle(prefill=ref))),
        )

    async def _run_prefill(self) -> None:
        request = worker_pb2.PrefillRequest(sequence=self._spec, will_be_pulled=True)
        async for _ in self._prefill.Prefill(request):
            pass

    async def _run_decode(self, handle: worker_pb2.KvHandle) -> None:
        call = self._decode.Decode()
        start = worker_pb2.DecodeRequest.Start(sequence=self._spec, kv=handle)
        await call.write(worker_pb2.DecodeRequest(start=start))
        async for response in call:
            self.tokens += response.tokens.token_ids


async def wait_for_transfer(worker: WorkerProcess) -> None:
    async with asyncio.timeout(20):
        while (await worker.facts()).counters.blocks_transferred == 0:
            await asyncio.sleep(0.01)


async def wait_until_nothing_is_held(worker: WorkerProcess) -> None:
    async with asyncio.timeout(5):
        while (blocks := (await worker.facts()).blocks).held:
            await asyncio.sleep(0.02)
    assert blocks.free + blocks.cached == blocks.total


def code_of(task: "asyncio.Task[None]") -> grpc.StatusCode:
    error = task.exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    code: grpc.StatusCode = error.code()
    return code


async def test_prefill_killed_in_mid_transfer(tiny_model: Path, tmp_path: Path) -> None:
    """Decode says so, frees the blocks, and works with the successor at the same address.

    C08: blocks of the prompt that came before the end are not found; sent again it is exact.
    """
    cut_off = prompt_of(3000)
    async with worker_process("decode", tiny_model, tmp_path) as decode:
        async with worker_process("prefill", tiny_model, tmp_path, *SLOW_PREFILL) as prefill:
            facts = await prefill.facts()
            legs = Legs(prefill, decode, sequence(cut_off))
            tasks = legs.start(facts.worker)
            await wait_for_transfer(decode)
            prefill.signal(signal.SIGKILL)
            await ended(*tasks)
            assert [code_of(task) for task in tasks] == [grpc.StatusCode.UNAVAILABLE] * 2
            await wait_until_nothing_is_held(decode)
        assert (SHM_FOLDER / facts.shared_memory.name).exists(), "nobody could unlink it"
        async with worker_process("prefill", tiny_model, tmp_path) as successor:
            assert not (SHM_FOLDER / facts.shared_memory.name).exists(), "swept at the start"
            assert (await decode.facts()).counters.blocks_cached == 0
            for prompt in (cut_off, prompt_of(100)):
                legs = Legs(successor, decode, sequence(prompt))
                await asyncio.gather(*legs.start((await successor.facts()).worker))
                assert legs.tokens == expected_tokens(tiny_model, prompt)


async def test_decode_killed_in_mid_transfer(tiny_model: Path, tmp_path: Path) -> None:
    async with (
        worker_process("prefill", tiny_model, tmp_path, *SLOW_PREFILL) as prefill,
        worker_process("decode", tiny_model, tmp_path) as decode,
    ):
        legs = Legs(prefill, decode, sequence(prompt_of(3000)))
        tasks = legs.start((await prefill.facts()).worker)
        await wait_for_transfer(decode)
        decode.signal(signal.SIGKILL)
        await ended(*tasks)
        assert [code_of(task) for task in tasks] == [grpc.StatusCode.UNAVAILABLE] * 2
        await wait_until_nothing_is_held(prefill)


@pytest.mark.slow  # tests/end_to_end/test_lifecycle.py does so with all of a service
async def test_sigterm_lets_open_requests_finish(tiny_model: Path, tmp_path: Path) -> None:
    async with (
        worker_process("prefill", tiny_model, tmp_path, *SLOW_PREFILL) as prefill,
        worker_process("decode", tiny_model, tmp_path) as decode,
    ):
        facts = await prefill.facts()
        prompt = prompt_of(1000)
        legs = Legs(prefill, decode, sequence(prompt, greedy(30)))
        tasks = legs.start(facts.worker)
        await wait_for_transfer(decode)
        for worker in (prefill, decode):
            worker.signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            service = "octavo.internal.v1alpha1.PrefillService"
            while await prefill.health(service) == health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.01)
        late = Legs(prefill, decode, sequence(prompt_of(9))).start(facts.worker)
        await ended(*late)
        assert [code_of(task) for task in late] == [grpc.StatusCode.UNAVAILABLE] * 2
        await asyncio.gather(*tasks)
        assert legs.tokens == expected_tokens(tiny_model, prompt, 30)
        assert [await worker.wait() for worker in (prefill, decode)] == [0, 0]
        assert not (SHM_FOLDER / facts.shared_memory.name).exists()


@pytest.fixture(autouse=True, scope="module")
def _no_segment_stays() -> object:
    yield
    sweep_dead_segments()
