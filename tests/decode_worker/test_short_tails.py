"""Prompts whose tail is short enough are computed by the decode worker alone."""

import asyncio
from pathlib import Path

import grpc
import pytest

from checkpoints import tiny_llama
from disaggregated.pair import Reply, running_pair, sequence
from disaggregated.prompts import expected_tokens, greedy, prompt_of
from octavo.internal.v1alpha1 import worker_pb2

TAIL = {"local_prefill_max_tokens": 20}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


async def test_up_to_the_limit_nobody_else_is_needed(model: Path) -> None:
    async with running_pair(model, decode=TAIL) as pair:
        for length in (1, 19, 20):
            reply = await pair.run_local(sequence(prompt_of(length)))
            assert reply.tokens == expected_tokens(model, prompt_of(length))
            assert reply.completed is not None and reply.completed.transferred_blocks == 0
        one = await pair.run_local(sequence(prompt_of(7), greedy(1)))
        assert one.tokens == expected_tokens(model, prompt_of(7), 1)
        await pair.wait_until_quiet()
        assert pair.prefill.streams.num_served == 0


async def test_a_longer_tail_is_refused_before_headers(model: Path) -> None:
    async with running_pair(model, decode=TAIL) as pair:
        call = pair.decode_stub.Decode()
        start = worker_pb2.DecodeRequest.Start(sequence=sequence(prompt_of(21)))
        await call.write(worker_pb2.DecodeRequest(start=start))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "21" in str(await call.details()) and "20" in str(await call.details())
        assert pair.decode.engine.counters().requests == 0


async def test_what_the_cache_holds_is_no_tail(model: Path) -> None:
    async with running_pair(model, decode=TAIL) as pair:
        prompt = prompt_of(96)
        await pair.generate(sequence(prompt))
        for tail in (1, 20):
            extended = prompt + prompt_of(tail, seed=5)
            reply = await pair.run_local(sequence(extended))
            assert reply.tokens == expected_tokens(model, extended)
            assert reply.started is not None and reply.started.cached_prompt_tokens == 96
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_local(sequence(prompt + prompt_of(21, seed=6)))
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        foreign = sequence(prompt + [5])
        foreign.group_key = b"y" * 32
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_local(foreign)
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_the_same_attempt_may_come_back_with_a_prefill_worker(model: Path) -> None:
    async with running_pair(model, decode=TAIL) as pair:
        spec = sequence(prompt_of(50))
        with pytest.raises(grpc.aio.AioRpcError):
            await pair.run_local(spec)
        reply = await pair.generate(spec)
        assert reply.tokens == expected_tokens(model, prompt_of(50))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
async def test_a_preempted_request_gives_the_same_tokens(model: Path, preemption: str) -> None:
    """Both requests fit alone and not together; the later one gives way."""
    decode = TAIL | {"num_blocks": 7, "preemption": preemption}
    async with running_pair(model, decode=decode) as pair:
        first, second = prompt_of(18, seed=1), prompt_of(18, seed=2)
        specs = [sequence(p, greedy(60)) for p in (first, second)]
        for spec in specs:
            spec.sampling.ignore_eos = True
        replies = [Reply(), Reply()]
        alone = []
        for spec in specs:
            solo = sequence(list(spec.prompt_token_ids), greedy(60))
            solo.sampling.ignore_eos = True
            alone.append((await pair.generate(solo)).tokens)
        await asyncio.gather(
            *(
                pair.run_decode(worker_pb2.DecodeRequest.Start(sequence=spec), reply)
                for spec, reply in zip(specs, replies, strict=True)
            )
        )
        assert [reply.tokens for reply in replies] == alone
        assert sum(r.completed.preemptions for r in replies if r.completed) > 0
        await pair.wait_until_quiet()
