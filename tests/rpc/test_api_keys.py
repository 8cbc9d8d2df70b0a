"""API keys, over real gRPC on loopback."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from octavo.client import AsyncClient, Client, OctavoError
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.rpc import api_keys
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.errors import Unauthenticated
from octavo.rpc.server import Server

SERVICE = "octavo.inference.v1.InferenceService"
KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"


class Open(inference_pb2_grpc.InferenceServiceServicer):
    async def ListModels(self, request, context):  # type: ignore[no-untyped-def]
        return inference_pb2.ListModelsResponse(models=["m"])

    async def StreamGenerate(self, request, context):  # type: ignore[no-untyped-def]
        yield inference_pb2.StreamGenerateResponse(request_id="seen")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# staging\n{KEY}\n\n{OTHER}\n")
    return path


@pytest.fixture
async def address(keys: Path) -> AsyncIterator[str]:
    server = Server((SERVICE,), keys=KeyRing(keys))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Open(), server.grpc)
    port = await server.start("127.0.0.1:0")
    yield f"127.0.0.1:{port}"
    await server.grpc.stop(None)


async def test_clients_with_a_key_are_let_in(address: str) -> None:
    for key in (KEY, OTHER):
        async with AsyncClient(address, api_key=key) as client:
            assert await client.list_models() == ["m"]


@pytest.mark.parametrize("key", [None, "", KEY[:-1], KEY + "x", "Bearer " + KEY])
async def test_calls_of_every_kind_without_one_are_not(address: str, key: str | None) -> None:
    async with AsyncClient(address, api_key=key) as client:
        with pytest.raises(OctavoError) as caught:
            await client.list_models()
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert "authorization: Bearer KEY" in caught.value.message
        assert KEY not in caught.value.message
        with pytest.raises(OctavoError) as caught:
            async for _ in client.stream("hello"):
                pass
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED


async def test_the_status_carries_its_reason(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(inference_pb2.ListModelsRequest())
    status, found = rpc_status.from_call(caught.value), error_details_pb2.ErrorInfo()
    assert status is not None
    assert any(detail.Unpack(found) for detail in status.details)
    assert found.reason == "UNAUTHENTICATED"


async def test_probes_need_no_key(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_changed_file_counts_without_a_restart(
    keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api_keys, "LOOK_INTERVAL_S", 0.0)
    ring = KeyRing(keys)
    ring.check(f"Bearer {KEY}")
    ring.check(f"bearer  {KEY} ")
    keys.write_text(f"{OTHER}\n")
    os.utime(keys, ns=(1, 1))
    ring.check(f"Bearer {OTHER}")
    with pytest.raises(Unauthenticated, match="not known"):
        ring.check(f"Bearer {KEY}")
    keys.write_text("")  # a mistake locks nobody out
    ring.check(f"Bearer {OTHER}")
    assert "holds no key" in caplog.text
    keys.unlink()
    ring.check(f"Bearer {OTHER}")


@pytest.mark.parametrize("scheme", ["", "Basic ", "Bearer"])
def test_only_bearer_keys_count(keys: Path, scheme: str) -> None:
    with pytest.raises(Unauthenticated):
        KeyRing(keys).check(scheme + KEY)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"api_key_file .*absent cannot be read"):
        KeyRing(tmp_path / "absent")
    short = tmp_path / "short"
    short.write_text("sk-1\n")
    with pytest.raises(ValueError, match="16 bytes or more"):
        KeyRing(short)
    short.write_text("# none yet\n")
    with pytest.raises(ValueError, match="holds no key"):
        KeyRing(short)


def test_a_key_that_no_header_can_carry_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Client(api_key="sk-\n")
