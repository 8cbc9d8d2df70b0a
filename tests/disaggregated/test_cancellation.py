"""Whenever and wherever a request is cancelled, both pools are whole again within a second."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from disaggregated.copies import HeldCopies
from disaggregated.pair import Pair, Reply, ended, running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo.internal.v1alpha1 import worker_pb2

CHUNKED = {"max_num_batched_tokens": 16}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def cancelled(task: "asyncio.Task[Reply]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def assert_sound(pair: Pair, model: Path) -> None:
    """Nothing leaked, and a canary is exact."""
    await pair.wait_until_quiet()
    prompt = prompt_of(33, seed=99)
    reply = await pair.generate(sequence(prompt))
    assert reply.tokens == expected_tokens(model, prompt)
    await pair.wait_until_quiet()


async def test_cancel_while_queued_at_decode(tiny_model: Path) -> None:
    async with running_pair(tiny_model, decode={"num_blocks": 16}) as pair:
        copies = HeldCopies()
        copies.install(pair.decode.engine.kv_cache)
        holder = asyncio.create_task(pair.generate(sequence(prompt_of(50))))
        await copies.held.wait()
        queued = asyncio.create_task(pair.generate(sequence(prompt_of(220))))
        await until(lambda: pair.decode.loop.load.waiting_sequences == 1)
        assert pair.prefill.loop.load.running_sequences == 0, "it waits for its pull"
        await cancelled(queued)
        await cancelled(holder)
        copies.let_go()
        await assert_sound(pair, tiny_model)


async def test_cancel_while_prefill_waits_for_its_pull(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        alone = asyncio.create_task(pair.run_prefill(sequence(prompt_of(40)), Reply()))
        await until(lambda: pair.prefill.streams.num_open == 1)
        assert pair.prefill.loop.load.blocks.held == 0
        alone.cancel()
        await ended(alone)
        await assert_sound(pair, tiny_model)


async def test_cancel_while_the_pull_waits_for_its_prefill(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        start = pair.start(sequence(prompt_of(40)))
        alone = asyncio.create_task(pair.run_decode(start, Reply()))
        await until(lambda: pair.prefill.streams.num_open == 1)
        assert pair.decode.loop.load.blocks.held == 3
        alone.cancel()
        await ended(alone)
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
async def test_cancel_at_every_block_of_a_transfer(tiny_model: Path, transport: str) -> None:
    settings = {"transport": transport}
    for num_blocks in range(8):
        async with running_pair(tiny_model, CHUNKED | settings, settings) as pair:
            copies = HeldCopies(after=num_blocks)
            copies.install(pair.decode.engine.kv_cache)
            task = asyncio.create_task(pair.generate(sequence(prompt_of(128))))
            await copies.held.wait()
            await cancelled(task)
            copies.let_go()
            await assert_sound(pair, tiny_model)


async def test_cancel_when_the_first_token_is_there(tiny_model: Path) -> None:
    async with running_pair(tiny_model, CHUNKED) as pair:
        spec, reply = sequence(prompt_of(100)), Reply()
        copies = HeldCopies()
        copies.install(pair.decode.engine.kv_cache)
        legs = [
            asyncio.create_task(pair.run_prefill(spec, reply)),
            asyncio.create_task(pair.run_decode(pair.start(spec), reply)),
        ]
        await until(lambda: reply.first_token is not None)
        assert not reply.deltas, "the token came before any block had arrived"
        for leg in legs:
            leg.cancel()
        await ended(*legs)
        copies.let_go()
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize("num_tokens", [1, 2, 30, 59])
async def test_cancel_while_decoding(tiny_model: Path, num_tokens: int) -> None:
    async with running_pair(tiny_model) as pair:
        spec = sequence(prompt_of(40), greedy(60))
        spec.sampling.ignore_eos = True
        reply = Reply()
        prefill = asyncio.create_task(pair.run_prefill(spec, reply))
        decode = asyncio.create_task(pair.run_decode(pair.start(spec), reply))
        await until(lambda: len(reply.deltas) >= num_tokens)
        decode.cancel()
        await ended(prefill, decode)
        await assert_sound(pair, tiny_model)


async def run_one_leg(pair: Pair, spec: worker_pb2.SequenceSpec, lost: str) -> BaseException | None:
    """Cancel leg `lost` while blocks are on their way; how the other leg ends."""
    copies = HeldCopies(after=2)
    copies.install(pair.decode.engine.kv_cache)
    legs: dict[str, asyncio.Task[None]] = {
        "prefill": asyncio.create_task(pair.run_prefill(spec, Reply())),
        "decode": asyncio.create_task(pair.run_decode(pair.start(spec), Reply())),
    }
    await copies.held.wait()
    legs[lost].cancel()
    copies.let_go()
    await ended(*legs.values())
    (other,) = legs.keys() - {lost}
    return legs[other].exception()


@pytest.mark.parametrize("lost", ["prefill", "decode"])
async def test_the_end_of_one_leg_ends_the_other(tiny_model: Path, lost: str) -> None:
    async with running_pair(tiny_model, CHUNKED) as pair:
        error = await run_one_leg(pair, sequence(prompt_of(900)), lost)
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await assert_sound(pair, tiny_model)


async def test_a_stop_ends_the_stream_well(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        spec = sequence(prompt_of(20), greedy(500))
        spec.sampling.ignore_eos = True
        prefill = asyncio.create_task(pair.run_prefill(spec, Reply()))
        call = pair.decode_stub.Decode()
        await call.write(worker_pb2.DecodeRequest(start=pair.start(spec)))
        num_tokens, last = 0, None
        async for response in call:
            last = response
            num_tokens += len(response.tokens.token_ids)
            if num_tokens == 5 and response.HasField("tokens"):
                stop = worker_pb2.DecodeRequest.Stop(samples=[0])
                await call.write(worker_pb2.DecodeRequest(stop=stop))
        assert last is not None and last.HasField("completed")
        assert await call.code() is grpc.StatusCode.OK
        assert 5 <= num_tokens < 500
        await prefill
        await assert_sound(pair, tiny_model)


async def test_two_hundred_cancels_at_random_moments(tiny_model: Path) -> None:
    settings = {"num_blocks": 24}
    async with running_pair(tiny_model, CHUNKED | settings, settings) as pair:

        async def run_a_while(index: int) -> None:
            prompt = prompt_of(20 + 7 * (index % 30), seed=index)
            try:
                async with asyncio.timeout(0.0005 * (index % 40)):
                    await pair.generate(sequence(prompt, greedy(8)))
            except TimeoutError:
                return

        for first in range(0, 200, 10):
            await asyncio.gather(*(run_a_while(first + i) for i in range(10)))
        await assert_sound(pair, tiny_model)
