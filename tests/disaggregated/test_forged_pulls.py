"""Pull references that are unknown, used twice, stale or foreign are refused (case C35)."""

import asyncio
from pathlib import Path

import grpc
import pytest

from disaggregated.copies import HeldCopies
from disaggregated.pair import GROUP_KEY, Pair, Reply, ended, running_pair, sequence
from disaggregated.prompts import expected_tokens, prompt_of
from octavo.block_key import prompt_digest
from octavo.internal.v1alpha1 import worker_pb2

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def opening_of(pair: Pair, spec: worker_pb2.SequenceSpec) -> worker_pb2.PullKvRequest.Open:
    """What an honest decode worker would open with."""
    return worker_pb2.PullKvRequest.Open(
        key=spec.key,
        epoch=pair.prefill.facts.worker.epoch,
        layout=pair.prefill.facts.layout,
        prompt_digest=prompt_digest(GROUP_KEY, list(spec.prompt_token_ids)),
        transport=worker_pb2.TRANSPORT_BYTES,
    )


async def status_of_pull(pair: Pair, opening: worker_pb2.PullKvRequest.Open) -> grpc.StatusCode:
    call = pair.transfer_stub.PullKv()
    try:
        async with asyncio.timeout(5):
            await call.write(worker_pb2.PullKvRequest(open=opening))
            response = await call.read()
            assert not isinstance(response, worker_pb2.PullKvResponse), "it was served"
            raise AssertionError("it ended well")
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()


async def test_forged_pulls_of_a_running_request_are_refused_and_do_no_harm(
    tiny_model: Path,
) -> None:
    async with running_pair(tiny_model) as pair:
        spec, reply = sequence(prompt_of(40)), Reply()
        prefill = asyncio.create_task(pair.run_prefill(spec, reply))
        while not pair.prefill.streams.num_open:
            await asyncio.sleep(0.001)

        other_prompt = opening_of(pair, spec)
        other_prompt.prompt_digest = prompt_digest(GROUP_KEY, prompt_of(41))
        assert await status_of_pull(pair, other_prompt) is PRECONDITION

        other_tenant = opening_of(pair, spec)
        other_tenant.prompt_digest = prompt_digest(b"x" * 32, list(spec.prompt_token_ids))
        assert await status_of_pull(pair, other_tenant) is PRECONDITION

        old_epoch = opening_of(pair, spec)
        old_epoch.epoch ^= 1
        assert await status_of_pull(pair, old_epoch) is PRECONDITION

        other_layout = opening_of(pair, spec)
        other_layout.layout.head_dim += 1
        assert await status_of_pull(pair, other_layout) is PRECONDITION

        for first_block in (3, 4, 2**32 - 1):
            too_far = opening_of(pair, spec)
            too_far.first_block = first_block
            assert await status_of_pull(pair, too_far) is grpc.StatusCode.INVALID_ARGUMENT

        assert not prefill.done()
        await pair.run_decode(pair.start(spec), reply)
        await prefill
        assert reply.tokens == expected_tokens(tiny_model, prompt_of(40))
        await pair.wait_until_quiet()


async def test_a_reference_works_once(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        spec = sequence(prompt_of(40))
        await pair.generate(spec)
        assert await status_of_pull(pair, opening_of(pair, spec)) is grpc.StatusCode.ABORTED
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_prefill(spec, Reply())
        assert failed.value.code() is grpc.StatusCode.ABORTED
        await pair.wait_until_quiet()


async def test_a_second_pull_of_a_running_one_is_refused(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        copies = HeldCopies()
        copies.install(pair.decode.engine.kv_cache)
        spec = sequence(prompt_of(40))
        task = asyncio.create_task(pair.generate(spec))
        await copies.held.wait()
        second = await status_of_pull(pair, opening_of(pair, spec))
        assert second is grpc.StatusCode.ALREADY_EXISTS
        copies.let_go()
        assert (await task).tokens == expected_tokens(tiny_model, prompt_of(40))


async def test_a_pull_nobody_announced_waits_and_holds_nothing(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        call = pair.transfer_stub.PullKv(timeout=0.2)
        await call.write(worker_pb2.PullKvRequest(open=opening_of(pair, sequence(prompt_of(9)))))
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await pair.wait_until_quiet()


async def test_a_request_that_is_not_to_be_pulled_is_not(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        spec = sequence(prompt_of(40))
        pull = asyncio.create_task(status_of_pull(pair, opening_of(pair, spec)))
        while not pair.prefill.streams.num_open:
            await asyncio.sleep(0.001)
        await pair.run_prefill(spec, Reply(), will_be_pulled=False)
        assert await pull is PRECONDITION


async def test_a_restarted_prefill_worker_is_another_one(tiny_model: Path) -> None:
    async with running_pair(tiny_model) as pair:
        await pair.generate(sequence(prompt_of(20)))
        start = pair.start(sequence(prompt_of(21)))
        start.kv.prefill.epoch ^= 1
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_decode(start, Reply())
        assert failed.value.code() is PRECONDITION
        reply = await pair.generate(sequence(prompt_of(22)))
        assert reply.tokens == expected_tokens(tiny_model, prompt_of(22))


@pytest.mark.parametrize("address", ["", "127.0.0.1:1", "unix:/nowhere/at/all.sock"])
async def test_a_handle_that_leads_nowhere_reserves_nothing(tiny_model: Path, address: str) -> None:
    async with running_pair(tiny_model) as pair:
        start = pair.start(sequence(prompt_of(20)))
        start.kv.prefill.address = address
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_decode(start, Reply())
        expected = grpc.StatusCode.UNAVAILABLE if address else grpc.StatusCode.INVALID_ARGUMENT
        assert failed.value.code() is expected
        assert pair.decode.engine.counters().requests == 0


async def test_a_newer_attempt_takes_over_and_older_ones_are_refused(tiny_model: Path) -> None:
    async with running_pair(tiny_model, {"num_blocks": 8}, {"num_blocks": 8}) as pair:
        copies = HeldCopies(after=1)
        copies.install(pair.decode.engine.kv_cache)
        prompt = prompt_of(70)
        old = sequence(prompt, request_id="same", attempt=1)
        legs = [
            asyncio.create_task(pair.run_prefill(old, Reply())),
            asyncio.create_task(pair.run_decode(pair.start(old), Reply())),
        ]
        await copies.held.wait()
        new = asyncio.create_task(pair.generate(sequence(prompt, request_id="same", attempt=2)))
        await ended(*legs)
        codes = {error.code() for leg in legs if (error := leg.exception())}  # type: ignore[union-attr,attr-defined]
        assert codes <= {grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE} and len(codes) > 0
        copies.let_go()
        assert (await new).tokens == expected_tokens(tiny_model, prompt)
        for run in (pair.run_prefill(old, Reply()), pair.run_decode(pair.start(old), Reply())):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await run
            assert failed.value.code() is grpc.StatusCode.ABORTED
        await pair.wait_until_quiet()
