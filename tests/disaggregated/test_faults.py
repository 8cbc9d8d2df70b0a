"""Bytes that change on the way, workers that do not fit, and peers that are stuck."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints import tiny_llama
from disaggregated.copies import HeldCopies, before_each_copy
from disaggregated.pair import GROUP_KEY, Pair, Reply, ended, running_pair, sequence
from disaggregated.prompts import expected_tokens, prompt_of
from octavo.block_key import prompt_digest
from octavo.decode_worker import servicer as decode_servicer
from octavo.internal.v1alpha1 import worker_pb2
from octavo.prefill_worker import pull_servicer
from octavo.transfer import sender


async def assert_sound(pair: Pair, model: Path) -> None:
    """Nothing leaked, both workers live and a canary is exact."""
    await pair.wait_until_quiet()
    prompt = prompt_of(35, seed=98)
    reply = await pair.generate(sequence(prompt))
    assert reply.tokens == expected_tokens(model, prompt)


async def failure_of(pair: Pair, spec: worker_pb2.SequenceSpec) -> grpc.aio.AioRpcError:
    """How the decode stream of a request ends that must fail."""
    prefill = asyncio.create_task(pair.run_prefill(spec, Reply()))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await pair.run_decode(pair.start(spec), Reply())
    await ended(prefill)
    return failed.value


async def test_a_flipped_bit_in_shared_memory_is_data_loss(tiny_model: Path) -> None:
    settings = {"transport": "shared_memory"}
    async with running_pair(tiny_model, settings, settings) as pair:
        segment = pair.prefill.path.segment
        assert segment is not None
        is_armed = True

        def flip() -> None:
            if is_armed:
                for slot in range(segment.num_slots):
                    segment.view(slot)[77] ^= 0x10

        before_each_copy(pair.decode.engine.kv_cache, flip)
        for length in (5, 16, 100):
            error = await failure_of(pair, sequence(prompt_of(length)))
            assert error.code() is grpc.StatusCode.DATA_LOSS
            await pair.wait_until_quiet()
        assert pair.decode.path.counters.digest_mismatches == 3
        is_armed = False
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "swap"])
async def test_damaged_messages_are_data_loss(
    tiny_model: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = sender.encode_chunk

    def damaged(header: worker_pb2.PullKvResponse.Chunk, payload: list[memoryview]) -> bytes:
        parts = [bytearray(part) for part in payload]
        if damage == "flip":
            parts[-1][-1] ^= 1
        elif damage == "truncate":
            del parts[-1][-1]
        elif damage == "extend":
            parts[-1].append(0)
        else:
            parts[0], parts[1] = parts[1], parts[0]
        return encode(header, [memoryview(part) for part in parts])

    settings = {"transport": "bytes"}
    async with running_pair(tiny_model, settings, settings) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(sender, "encode_chunk", damaged)
            error = await failure_of(pair, sequence(prompt_of(40)))
        assert error.code() is grpc.StatusCode.DATA_LOSS
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize("field", ["chunk", "first_block"])
async def test_chunks_out_of_order_are_data_loss(
    tiny_model: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = sender.encode_chunk

    def displaced(header: worker_pb2.PullKvResponse.Chunk, payload: list[memoryview]) -> bytes:
        setattr(header, field, getattr(header, field) + 1)
        return encode(header, payload)

    async with running_pair(tiny_model) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(sender, "encode_chunk", displaced)
            error = await failure_of(pair, sequence(prompt_of(40)))
        assert error.code() is grpc.StatusCode.DATA_LOSS
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("block_size", {"block_size": 32}),
        ("dtype", {"dtype": "bfloat16"}),
        ("quantization", {"quantization": "int8"}),
    ],
)
async def test_workers_of_unequal_layout_name_the_field(
    tiny_model: Path, field: str, settings: dict[str, Any]
) -> None:
    async with running_pair(tiny_model, decode=settings) as pair:
        spec = sequence(prompt_of(20))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_decode(pair.start(spec), Reply())
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        details = str(failed.value.details())
        assert field in details and str(settings[field]) in details
        await pair.wait_until_quiet()


async def test_workers_of_different_models_name_the_fingerprint(
    tiny_model: Path, tmp_path: Path
) -> None:
    other = tiny_llama(tmp_path / "other", rope_theta=5000.0)
    async with running_pair(tiny_model) as one, running_pair(other) as two:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await two.run_decode(one.start(sequence(prompt_of(20))), Reply())
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "model_fingerprint" in str(failed.value.details())


async def test_prefill_ends_a_pull_whose_reader_is_stuck(tiny_model: Path) -> None:
    async with running_pair(tiny_model, {"max_num_batched_tokens": 16}) as pair:
        pair.prefill.pulls.stall_s = 0.3
        copies = HeldCopies(after=2)
        copies.install(pair.decode.engine.kv_cache)
        spec = sequence(prompt_of(100))
        decode = asyncio.create_task(pair.run_decode(pair.start(spec), Reply()))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_prefill(spec, Reply())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        decode.cancel()  # as the router does when a leg fails
        await ended(decode)
        await asyncio.sleep(0.1)
        assert pair.decode.loop.load.blocks.held > 0, "a thread still writes them"
        copies.let_go()
        await assert_sound(pair, tiny_model)


async def test_a_puller_that_never_reads_holds_no_block(tiny_model: Path) -> None:
    """Its messages fill the connection's window; prefill gives up on it all the same."""
    settings = {"transport": "bytes", "num_blocks": 256}
    async with running_pair(tiny_model, settings) as pair:
        pair.prefill.pulls.stall_s = 0.3
        spec = sequence(prompt_of(3000))
        call = pair.transfer_stub.PullKv()
        opening = worker_pb2.PullKvRequest.Open(
            key=spec.key,
            epoch=pair.prefill.facts.worker.epoch,
            layout=pair.prefill.facts.layout,
            prompt_digest=prompt_digest(GROUP_KEY, list(spec.prompt_token_ids)),
            transport=worker_pb2.TRANSPORT_BYTES,
        )
        await call.write(worker_pb2.PullKvRequest(open=opening))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pair.run_prefill(spec, Reply())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await pair.wait_until_quiet(timeout_s=3)
        call.cancel()
        await assert_sound(pair, tiny_model)


@pytest.mark.parametrize("worker", ["prefill", "decode"])
async def test_a_caller_that_opens_a_stream_too_slowly_is_not_told_that_it_is_wrong(
    tiny_model: Path, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_servicer, "OPEN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(decode_servicer, "START_TIMEOUT_S", 0.1)
    async with running_pair(tiny_model) as pair, asyncio.timeout(10):
        stub = pair.transfer_stub.PullKv if worker == "prefill" else pair.decode_stub.Decode
        call = stub()
        assert await call.code() is grpc.StatusCode.ABORTED
        assert "no message came within 0.1 s" in str(await call.details())
        await pair.wait_until_quiet()


async def test_blocks_too_large_for_a_message_are_refused_by_size(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"transport": "bytes"}
    async with running_pair(tiny_model, settings, settings) as pair:
        num_bytes = pair.prefill.path.kv_cache.block_bytes + pull_servicer.MAX_HEADER_BYTES
        monkeypatch.setattr(pull_servicer, "INTERNAL_MESSAGE_BYTES", num_bytes - 1)
        with pytest.raises(
            grpc.aio.AioRpcError, match=f"one block has {num_bytes} bytes"
        ) as failed:
            await pair.run_decode(pair.start(sequence(prompt_of(20))), Reply())
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        monkeypatch.setattr(pull_servicer, "INTERNAL_MESSAGE_BYTES", num_bytes)
        await assert_sound(pair, tiny_model)
