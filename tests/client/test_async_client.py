"""The asyncio client against a scripted service: answers, errors, retries, deadlines, cancels."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator

import grpc
import pytest

from client.scripted_service import WORDS, ScriptedService
from octavo.client import AsyncClient, FinishReason, OctavoError
from octavo.rpc.errors import InvalidRequest, NoWorker, Overloaded, RequestError


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.address) as client:
        yield client


async def ended(service: ScriptedService) -> None:
    async with asyncio.timeout(5):
        await service.ended.wait()


async def test_generate_returns_the_whole_output(client: AsyncClient) -> None:
    completion = await client.generate("Hi", max_tokens=4, request_id="mine")
    assert (completion.text, completion.token_ids) == ("".join(WORDS), [1, 2, 3, 4])
    assert (completion.finish_reason, completion.matched_stop) == (FinishReason.STOP, 4)
    assert (completion.usage.prompt_tokens, completion.usage.cached_prompt_tokens) == (5, 2)
    assert (completion.timing.total_s, completion.timing.prefill_worker) == (1.5, "prefill-0")
    assert (completion.model, completion.request_id) == ("tiny", "mine")


async def test_stream_gives_deltas_and_then_the_completion(client: AsyncClient) -> None:
    stream = client.stream([{"role": "user", "content": "Hi"}], request_id="mine")
    with pytest.raises(RuntimeError, match="read the stream to its end"):
        _ = stream.completion
    deltas = [delta async for delta in stream]
    assert [delta.text for delta in deltas] == WORDS
    completion = stream.completion
    assert (completion.text, completion.token_ids) == ("".join(WORDS), [1, 2, 3, 4])
    assert completion.finish_reason == FinishReason.STOP_SEQUENCE == "stop_sequence"
    assert (completion.matched_stop, completion.usage.completion_tokens) == ("END", 4)
    assert (completion.model, completion.request_id) == ("tiny", "mine")


async def test_the_model_and_its_tokenizer_can_be_asked(client: AsyncClient) -> None:
    assert await client.tokenize("Hi") == [7, 8]
    assert await client.list_models() == ["tiny"]
    facts = await client.get_model()
    assert (facts.max_context_tokens, facts.eos_token_ids) == (2048, [2])
    assert facts.default_sampling == {"temperature": 0.5, "top_k": 40}


async def test_an_unavailable_service_is_tried_three_times(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.failures.extend(NoWorker("starting") for _ in range(2))
    assert (await client.generate("Hi")).token_ids == [1, 2, 3, 4]
    assert len(service.requests) == 3
    service.failures.extend(NoWorker("starting") for _ in range(2))
    assert len([delta async for delta in client.stream("Hi")]) == 4
    assert len(service.requests) == 6


class Reset(RequestError):
    """As a server that closes ends a call which it has just accepted."""

    code = grpc.StatusCode.CANCELLED


async def test_a_call_that_a_closing_server_reset_is_tried_again(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.failures.append(Reset("CANCELLED"))
    assert (await client.generate("Hi")).token_ids == [1, 2, 3, 4]
    service.failures.append(Reset("CANCELLED"))
    assert len([delta async for delta in client.stream("Hi")]) == 4
    assert len(service.requests) == 4


async def test_after_three_attempts_the_last_error_is_told(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.failures.extend(NoWorker("no prefill worker") for _ in range(4))
    with pytest.raises(OctavoError, match="UNAVAILABLE: no prefill worker") as caught:
        await client.generate("Hi")
    assert len(service.requests) == 3
    assert caught.value.is_from_service


async def test_many_failures_stop_the_retries(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.failures.extend(NoWorker("down") for _ in range(100))
    for _ in range(10):
        with pytest.raises(OctavoError):
            await client.generate("Hi")
    assert len(service.requests) < 20  # of the 30 that three attempts each would make


async def test_a_refused_request_is_not_tried_again_and_says_when_to_come_back(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.failures.append(Overloaded("queue full: 4096 tokens", retry_after_s=1.5))
    with pytest.raises(OctavoError, match="queue full.*retry after 1.5 s") as caught:
        await client.generate("Hi")
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.retry_after_s == 1.5
    assert len(service.requests) == 1


async def test_an_invalid_request_names_its_field(
    service: ScriptedService, client: AsyncClient
) -> None:
    for ask in (lambda: client.generate("Hi"), lambda: anext(client.stream("Hi"))):
        service.failures.append(InvalidRequest("sampling.top_p", "top_p must be 0 to 1, got 2"))
        with pytest.raises(OctavoError, match="top_p must be 0 to 1, got 2") as caught:
            await ask()
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.field == "sampling.top_p"


async def test_a_failure_after_the_first_token_ends_the_stream(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.late_failure = NoWorker("the decode worker died")
    texts = []
    with pytest.raises(OctavoError, match="the decode worker died"):
        async for delta in client.stream("Hi"):
            texts.append(delta.text)
    assert texts == WORDS[:2]
    assert len(service.requests) == 1


async def test_the_deadline_goes_with_the_call_and_ends_it(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.is_stuck = True
    with pytest.raises(OctavoError) as caught:
        await client.generate("Hi", timeout_s=0.3)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not caught.value.is_from_service
    # Sent in whole milliseconds, on clocks of their own.
    assert service.time_remaining_s is not None and 0 < service.time_remaining_s <= 0.35
    await ended(service)


async def test_a_client_may_have_a_deadline_for_all_its_calls(service: ScriptedService) -> None:
    service.is_stuck = True
    async with AsyncClient(service.address, timeout_s=0.3) as client:
        with pytest.raises(OctavoError, match="DEADLINE_EXCEEDED"):
            async for _ in client.stream("Hi"):
                pass
    await ended(service)


async def test_leaving_a_stream_cancels_its_request(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.is_stuck = True
    async with client.stream("Hi") as stream:
        async for delta in stream:
            if delta.text == WORDS[1]:
                break
    await ended(service)


async def test_a_dropped_stream_cancels_its_request(
    service: ScriptedService, client: AsyncClient
) -> None:
    service.is_stuck = True
    async for delta in client.stream("Hi"):
        if delta.text == WORDS[1]:
            break
    gc.collect()
    await ended(service)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_cancelling_the_task_cancels_its_request(
    service: ScriptedService, client: AsyncClient, is_stream: bool
) -> None:
    service.is_stuck = True

    async def ask() -> None:
        if not is_stream:
            await client.generate("Hi")
        async for _ in client.stream("Hi"):
            pass

    task = asyncio.create_task(ask())
    async with asyncio.timeout(5):
        while not service.requests:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended(service)


async def test_closing_the_client_cancels_its_requests(service: ScriptedService) -> None:
    service.is_stuck = True
    async with AsyncClient(service.address) as client:
        stream = client.stream("Hi")
        await anext(stream)
    await ended(service)


async def test_nobody_listening_is_told_from_a_refusal(unused_tcp_port: int) -> None:
    async with AsyncClient(f"127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(OctavoError) as caught:
            await client.generate("Hi", timeout_s=5)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert not caught.value.is_from_service


def test_the_client_is_imported_without_torch_or_transformers() -> None:
    code = "import octavo.client, sys; print({'torch', 'transformers', 'redis'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "set()"
