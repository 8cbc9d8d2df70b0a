"""What a prefill worker does for a caller that nobody pulls for, and how it tells its load."""

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from checkpoints import tiny_llama
from disaggregated.pair import Reply, running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo.internal.v1alpha1 import worker_pb2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


async def test_a_prompt_is_found_in_the_cache_the_second_time(model: Path) -> None:
    async with running_pair(model) as pair:
        for cached in (0, 32):
            reply = Reply()
            spec = sequence(prompt_of(40), greedy(1))
            await pair.run_prefill(spec, reply, will_be_pulled=False)
            assert reply.tokens == expected_tokens(model, prompt_of(40), 1)
            assert reply.prefill_started is not None
            assert reply.prefill_started.cached_prompt_tokens == cached
        await pair.wait_until_quiet()
        counters = (
            await pair.prefill_worker_stub.GetWorker(worker_pb2.GetWorkerRequest())
        ).counters
        assert counters.prompt_tokens_computed == 48 and counters.prompt_tokens_cached == 32


async def test_a_deadline_ends_a_prompt_that_waits_for_its_pull(model: Path) -> None:
    async with running_pair(model) as pair:
        request = worker_pb2.PrefillRequest(sequence=sequence(prompt_of(9)), will_be_pulled=True)
        call = pair.prefill_stub.Prefill(request, timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                raise AssertionError("nothing is sent before the pull is there")
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await pair.wait_until_quiet()


async def test_a_request_without_a_deadline_gets_one(model: Path) -> None:
    async with running_pair(model, {"max_request_s": 0.2}) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_prefill(sequence(prompt_of(9)), Reply())
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.2 s" in str(failed.value.details())
        await pair.wait_until_quiet()


async def test_facts_name_role_epoch_layout_and_memory(model: Path) -> None:
    async with running_pair(model) as pair:
        request = worker_pb2.GetWorkerRequest()
        prefill = await pair.prefill_worker_stub.GetWorker(request)
        decode = await pair.decode_worker_stub.GetWorker(request)
        assert prefill.role == worker_pb2.WORKER_ROLE_PREFILL
        assert decode.role == worker_pb2.WORKER_ROLE_DECODE
        assert prefill.worker.epoch and prefill.worker.epoch != decode.worker.epoch
        assert prefill.layout == decode.layout and prefill.layout.block_size == 16
        assert prefill.max_context_tokens == 64 * 16 and prefill.vocab_size == 384
        assert prefill.shared_memory.size_bytes > 0 and not decode.shared_memory.name
        assert decode.local_prefill_max_tokens == 64
        blocks = prefill.blocks
        assert (blocks.total, blocks.free, blocks.cached, blocks.held) == (64, 64, 0, 0)


async def test_load_comes_at_once_then_per_change_and_ends_with_draining(model: Path) -> None:
    async with running_pair(model) as pair:
        interval = Duration(nanos=10_000_000)
        call = pair.prefill_worker_stub.WatchLoad(
            worker_pb2.WatchLoadRequest(min_interval=interval)
        )
        async with asyncio.timeout(10):
            first = await call.read()
            assert first.sequence == 0 and first.steps == 0 and not first.is_draining
            await pair.generate(sequence(prompt_of(30)))
            sample = await call.read()
            while sample.steps == 0 or sample.blocks.held:
                assert sample.epoch == first.epoch
                sample = await call.read()
            pair.prefill.streams.close()
            while not sample.is_draining:
                sample = await call.read()
            assert await call.code() is grpc.StatusCode.OK


async def test_a_draining_worker_takes_nothing_new(model: Path) -> None:
    async with running_pair(model) as pair:
        pair.prefill.streams.close()
        pair.decode.streams.close()
        for run in (
            pair.run_prefill(sequence(prompt_of(9)), Reply()),
            pair.run_local(sequence(prompt_of(9))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await run
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "draining" in str(failed.value.details())
