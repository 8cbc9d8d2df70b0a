"""Errors, sampling messages and a server's life, over real gRPC on loopback."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import fields

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.rpc.channels import open_channel
from octavo.rpc.errors import (
    InvalidRequest,
    Overloaded,
    Unsupported,
    errors_to_status,
)
from octavo.rpc.listening import CannotListen
from octavo.rpc.sampling import output_to_proto, sampling_from_proto, sampling_to_proto
from octavo.rpc.server import Server, serve_until_signal
from octavo.sampling_params import SamplingParams

SERVICE = "octavo.inference.v1.InferenceService"


class Failing(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self) -> None:
        self.error: Exception = ValueError("secret prompt text")

    async def GetModel(self, request, context):  # type: ignore[no-untyped-def]
        async with errors_to_status(context):
            raise self.error


@pytest.fixture
async def failing() -> AsyncIterator[tuple[Failing, inference_pb2_grpc.InferenceServiceStub]]:
    servicer, server = Failing(), Server((SERVICE,))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
    port = await server.start("127.0.0.1:0")
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, inference_pb2_grpc.InferenceServiceStub(channel)
    await server.grpc.stop(None)


async def failure(stub: inference_pb2_grpc.InferenceServiceStub) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(inference_pb2.GetModelRequest(), timeout=5)
    return caught.value


def details(error: grpc.aio.AioRpcError, kind: type) -> object:
    status = rpc_status.from_call(error)
    assert status is not None
    found = kind()
    assert any(detail.Unpack(found) for detail in status.details)
    return found


async def test_a_bad_field_is_named_in_the_details(failing) -> None:  # type: ignore[no-untyped-def]
    servicer, stub = failing
    servicer.error = InvalidRequest("sampling.top_p", "top_p must be 0 to 1, got 2")
    error = await failure(stub)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    bad = details(error, error_details_pb2.BadRequest)
    assert bad.field_violations[0].field == "sampling.top_p"  # type: ignore[attr-defined]
    info = details(error, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "octavo")  # type: ignore[attr-defined]


async def test_overload_says_when_to_come_back(failing) -> None:  # type: ignore[no-untyped-def]
    servicer, stub = failing
    servicer.error = Overloaded("queue full", retry_after_s=1.5)
    error = await failure(stub)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = details(error, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1500  # type: ignore[attr-defined]


async def test_a_defect_is_internal_and_its_text_stays_inside(failing) -> None:  # type: ignore[no-untyped-def]
    error = await failure(failing[1])
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")


@pytest.mark.parametrize("character", ["x", "\n", "é", "€", "😀", "\ud800"])
async def test_long_messages_do_not_break_the_status(  # type: ignore[no-untyped-def]
    failing, character: str
) -> None:
    servicer, stub = failing
    for length in (1199, 1201, 100_000):
        servicer.error = InvalidRequest("chat", character * length)
        error = await failure(stub)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
        assert 1100 < len((error.details() or "").encode()) <= 1200


def test_sampling_survives_the_wire() -> None:
    params = SamplingParams(
        max_tokens=7, temperature=0.0, top_p=0.5, top_k=3, min_p=0.25, seed=2**64 - 1,
        stop_token_ids=(1, 2), ignore_eos=True, min_tokens=3, presence_penalty=-1.5,
        frequency_penalty=0.25, repetition_penalty=1.5, logit_bias={7: -100.0, 8: 0.5},
        bad_words_ids=((1,), (2, 3)), allowed_token_ids=(4, 5), logprobs=0, prompt_logprobs=20,
    )  # fmt: skip
    assert sampling_from_proto(sampling_to_proto(params), output_to_proto(params)) == params
    assert output_to_proto(SamplingParams()) is None


def test_zero_temperature_is_not_unset() -> None:
    message = inference_pb2.SamplingParams(temperature=0.0)
    assert sampling_from_proto(message, defaults={"temperature": 0.7}).temperature == 0.0
    unset = inference_pb2.SamplingParams()
    assert sampling_from_proto(unset, defaults={"temperature": 0.7}).temperature == 0.7


def test_every_field_is_read_or_refused_by_name() -> None:
    """Built from the proto, so that a new field cannot be forgotten."""
    known = {field.name for field in fields(SamplingParams)}
    for field in inference_pb2.SamplingParams.DESCRIPTOR.fields:
        if field.name in known:
            continue
        message = inference_pb2.SamplingParams()
        setattr(message, field.name, "x" if field.type == field.TYPE_STRING else 2)
        with pytest.raises(Unsupported, match=f"sampling.{field.name}"):
            sampling_from_proto(message)


def test_a_bad_value_names_its_field() -> None:
    with pytest.raises(InvalidRequest, match="sampling.top_p") as caught:
        sampling_from_proto(inference_pb2.SamplingParams(top_p=float("nan")))
    assert caught.value.field == "sampling.top_p"


async def test_sigterm_drains_and_returns() -> None:
    server = Server((SERVICE,))
    port = await server.start("127.0.0.1:0")
    await server.set_ready(True)
    serving = asyncio.create_task(serve_until_signal(server, grace_s=1))
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, timeout=5)


async def test_a_taken_port_is_refused() -> None:
    server = Server((SERVICE,))
    port = await server.start("127.0.0.1:0")
    with pytest.raises(CannotListen, match=f"cannot listen at 127.0.0.1:{port}: .*another address"):
        await Server((SERVICE,)).start(f"127.0.0.1:{port}")
    await server.grpc.stop(None)


async def test_a_server_that_drains_is_not_made_ready_again() -> None:
    server = Server((SERVICE,))
    port = await server.start("127.0.0.1:0")
    async with open_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(10):
        health = health_pb2_grpc.HealthStub(channel)
        states = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        await server.set_ready(True)
        while (await states.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        draining = asyncio.create_task(server.drain(0.5))
        while (await states.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass
        await server.set_ready(True)  # a worker came back just now
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            status = (await states.read()).status
            raise AssertionError(f"told {status}")
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await draining
