"""The blocking client against a scripted service; it runs in a thread, the service in the loop."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from client.scripted_service import WORDS, ScriptedService
from octavo.client import Client, FinishReason, OctavoError
from octavo.rpc.errors import InvalidRequest, NoWorker


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[Client]:
    with Client(service.address) as client:
        yield client


async def ended(service: ScriptedService) -> None:
    async with asyncio.timeout(5):
        await service.ended.wait()


async def test_generate_and_stream_give_the_same_text(client: Client) -> None:
    def ask() -> tuple[str, list[str], FinishReason]:
        stream = client.stream("Hi", max_tokens=4)
        texts = [delta.text for delta in stream]
        return client.generate("Hi").text, texts, stream.completion.finish_reason

    text, texts, reason = await asyncio.to_thread(ask)
    assert (text, texts, reason) == ("".join(WORDS), WORDS, FinishReason.STOP_SEQUENCE)


async def test_the_model_and_its_tokenizer_can_be_asked(client: Client) -> None:
    assert await asyncio.to_thread(client.tokenize, "Hi") == [7, 8]
    assert await asyncio.to_thread(client.list_models) == ["tiny"]
    assert (await asyncio.to_thread(client.get_model)).block_size == 16


async def test_an_unavailable_service_is_tried_three_times(
    service: ScriptedService, client: Client
) -> None:
    service.failures.extend(NoWorker("starting") for _ in range(2))
    assert len(await asyncio.to_thread(list, client.stream("Hi"))) == 4
    assert len(service.requests) == 3


async def test_errors_carry_code_and_field(service: ScriptedService, client: Client) -> None:
    service.failures.append(InvalidRequest("sampling.top_p", "top_p must be 0 to 1, got 2"))
    with pytest.raises(OctavoError) as caught:
        await asyncio.to_thread(client.generate, "Hi")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == "sampling.top_p"
    service.late_failure = NoWorker("the decode worker died")
    with pytest.raises(OctavoError, match="the decode worker died"):
        await asyncio.to_thread(list, client.stream("Hi"))


async def test_the_deadline_ends_a_call(service: ScriptedService, client: Client) -> None:
    service.is_stuck = True
    for ask in (
        lambda: client.generate("Hi", timeout_s=0.3),
        lambda: list(client.stream("Hi", timeout_s=0.3)),
    ):
        with pytest.raises(OctavoError, match="DEADLINE_EXCEEDED"):
            await asyncio.to_thread(ask)
        await ended(service)
        service.ended.clear()


async def test_leaving_a_stream_cancels_its_request(
    service: ScriptedService, client: Client
) -> None:
    service.is_stuck = True

    def leave() -> None:
        with client.stream("Hi") as stream:
            next(stream)

    await asyncio.to_thread(leave)
    await ended(service)


async def test_a_dropped_stream_cancels_its_request(
    service: ScriptedService, client: Client
) -> None:
    service.is_stuck = True

    def drop() -> None:
        for _ in client.stream("Hi"):
            break

    await asyncio.to_thread(drop)
    await ended(service)
