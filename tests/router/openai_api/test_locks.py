"""The HTTP port's locks: keys and certificates, those of the gRPC port."""

import os
import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme

from octavo.inference.v1 import inference_pb2
from octavo.router.config import RouterConfig
from octavo.rpc.api_keys import LOOK_INTERVAL_S
from router.openai_api.conftest import COMPLETION, Door, StartDoor
from rpc.certificates import write_folder

KEY = "sk-0123456789abcdef"
NEW_KEY = "sk-fedcba9876543210"
HOST = "127.0.0.1"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_every_path_but_health_asks_for_a_key(start_door: StartDoor, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    async with start_door([5, 2], api_key_file=tmp_path / "keys") as door:
        for headers in ({}, bearer(NEW_KEY), bearer(KEY[:-1]), {"authorization": f"Basic {KEY}"}):
            for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/nowhere", "/health/"):
                check_refused(await door.client.get(path, headers=headers))
            for body in (COMPLETION, COMPLETION | {"stream": True}):
                reply = await door.client.post("/v1/completions", json=body, headers=headers)
                check_refused(reply)
        assert not door.fleet.prefill.specs
        assert (await door.client.get("/health")).status_code == 200
        assert (await door.client.get("/metrics", headers=bearer(KEY))).status_code == 200
        reply = await door.client.post("/v1/completions", json=COMPLETION, headers=bearer(KEY))
        assert reply.status_code == 200


def check_refused(reply: httpx.Response) -> None:
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert KEY not in reply.text


async def test_both_ports_know_the_same_keys(
    start_door: StartDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the file changes, whichever port looks first."""
    assert LOOK_INTERVAL_S > 0
    monkeypatch.setattr("octavo.rpc.api_keys.LOOK_INTERVAL_S", 0.0)
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    async with start_door([5, 2], api_key_file=keys) as door:
        await check_keys(door, known=KEY, unknown=NEW_KEY)
        keys.write_text(NEW_KEY)
        os.utime(keys, ns=(1, 1))  # a clock that stood still would hide the change
        await check_keys(door, known=NEW_KEY, unknown=KEY)


async def check_keys(door: Door, known: str, unknown: str) -> None:
    request = inference_pb2.ListModelsRequest()
    for key, status in ((unknown, 401), (known, 200)):
        reply = await door.client.get("/v1/models", headers=bearer(key))
        assert reply.status_code == status
    metadata = tuple(bearer(known).items())
    assert (await door.fleet.stub.ListModels(request, metadata=metadata)).models == ["tiny"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await door.fleet.stub.ListModels(request, metadata=tuple(bearer(unknown).items()))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def files(folder: Path) -> dict[str, Path]:
    return {"tls_cert_file": folder / "tls.crt", "tls_key_file": folder / "tls.key"}


async def get_models(door: Door, verify: ssl.SSLContext) -> int:
    """A new connection each time."""
    url = f"https://{HOST}:{door.url.rpartition(':')[2]}"
    async with httpx.AsyncClient(base_url=url, verify=verify, timeout=5) as client:
        return (await client.get("/v1/models")).status_code


def trusting(folder: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    if own is not None:
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    return context


async def test_a_renewed_certificate_counts_for_the_next_connection(
    start_door: StartDoor, tmp_path: Path
) -> None:
    old = write_folder(tmp_path / "old", trustme.CA(), HOST)
    folder = write_folder(tmp_path / "tls", trustme.CA(), HOST)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (folder / name).write_bytes((old / name).read_bytes())
    async with start_door([5], **files(folder), wait_ready=False) as door:
        with pytest.raises(httpx.HTTPError):
            await door.client.get("/health")  # no TLS
        assert await get_models(door, trusting(old)) == 200
        write_folder(folder, trustme.CA(), HOST)
        os.utime(folder / "tls.crt", ns=(1, 1))
        assert await get_models(door, trusting(folder)) == 200
        with pytest.raises(httpx.ConnectError):
            await get_models(door, trusting(old))
        (folder / "tls.key").write_text("half a ke")  # between two writes: the last one stays
        os.utime(folder / "tls.key", ns=(2, 2))
        assert await get_models(door, trusting(folder)) == 200


async def test_clients_show_a_certificate_where_one_is_asked_for(
    start_door: StartDoor, tmp_path: Path
) -> None:
    authority = trustme.CA()
    folder = write_folder(tmp_path / "tls", authority, HOST)
    own = write_folder(tmp_path / "client", authority, "client")
    foreign = write_folder(tmp_path / "foreign", trustme.CA(), "client")
    settings: dict[str, Any] = files(folder) | {"tls_client_ca_file": folder / "ca.crt"}
    async with start_door([5], **settings, wait_ready=False) as door:
        assert await get_models(door, trusting(folder, own)) == 200
        for stranger in (trusting(folder), trusting(folder, foreign)):
            # TLS 1.3 may refuse after the handshake: httpx lets the alert through as it reads.
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                await get_models(door, stranger)


def test_plaintext_beyond_this_machine_must_be_asked_for(tmp_path: Path) -> None:
    beyond: dict[str, Any] = {"model": "m", "http_address": "0.0.0.0:8000"}
    with pytest.raises(ValueError, match=r"http_address 0\.0\.0\.0:8000 .*--tls-cert-file"):
        RouterConfig(**beyond)
    RouterConfig(**beyond, insecure=True)
    RouterConfig(**beyond, **files(write_folder(tmp_path, trustme.CA(), HOST)))
    RouterConfig(model="m", http_address="none")
