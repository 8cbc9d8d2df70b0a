"""Ports with certificates, over real gRPC on loopback."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from octavo.client import AsyncClient, Client, ClientTls, OctavoError
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.router.config import RouterConfig
from octavo.rpc.exposure import is_local
from octavo.rpc.server import Server
from octavo.rpc.tls import TlsFiles
from octavo.worker.config import WorkerConfig
from rpc.certificates import write_folder

SERVICE = "octavo.inference.v1.InferenceService"
NAME = "localhost"


class OneModel(inference_pb2_grpc.InferenceServiceServicer):
    async def ListModels(self, request, context):  # type: ignore[no-untyped-def]
        return inference_pb2.ListModelsResponse(models=["m"])


@asynccontextmanager
async def listening(tls: TlsFiles) -> AsyncIterator[str]:
    server = Server((SERVICE,))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(OneModel(), server.grpc)
    port = await server.start(f"{NAME}:0", tls=tls)
    try:
        yield f"{NAME}:{port}"
    finally:
        await server.grpc.stop(None)


async def models(address: str, tls: ClientTls | None) -> list[str]:
    async with AsyncClient(address, timeout_s=3, tls=tls) as client:
        return await client.list_models()


async def refusal(address: str, tls: ClientTls | None) -> grpc.StatusCode:
    with pytest.raises(OctavoError) as caught:
        await models(address, tls)
    return caught.value.code


async def test_only_who_knows_the_authority_talks_to_the_port(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", trustme.CA(), NAME)
    other = write_folder(tmp_path / "b", trustme.CA(), NAME)
    async with listening(TlsFiles(folder / "tls.crt", folder / "tls.key")) as address:
        assert await models(address, ClientTls(folder / "ca.crt")) == ["m"]
        for wrong in (None, ClientTls(), ClientTls(other / "ca.crt")):
            assert await refusal(address, wrong) is grpc.StatusCode.UNAVAILABLE


async def test_a_port_with_a_client_authority_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    folder = write_folder(tmp_path / "server", authority, NAME)
    own = write_folder(tmp_path / "client", authority, "client")
    foreign = write_folder(tmp_path / "foreign", trustme.CA(), "client")
    async with listening(TlsFiles.in_folder(folder)) as address:
        known = ClientTls(folder / "ca.crt", own / "tls.crt", own / "tls.key")
        assert await models(address, known) == ["m"]
        stranger = ClientTls(folder / "ca.crt", foreign / "tls.crt", foreign / "tls.key")
        for wrong in (ClientTls(folder / "ca.crt"), stranger):
            assert await refusal(address, wrong) is grpc.StatusCode.UNAVAILABLE


async def test_a_renewed_certificate_counts_for_the_next_connection(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, trustme.CA(), NAME)
    async with listening(TlsFiles(folder / "tls.crt", folder / "tls.key")) as address:
        before = folder / "before.crt"
        (folder / "ca.crt").rename(before)
        assert await models(address, ClientTls(before)) == ["m"]
        write_folder(folder, trustme.CA(), NAME)
        os.utime(folder / "tls.crt", ns=(1, 1))  # a clock that stood still would hide the change
        assert await models(address, ClientTls(folder / "ca.crt")) == ["m"]
        assert await refusal(address, ClientTls(before)) is grpc.StatusCode.UNAVAILABLE
        (folder / "tls.key").unlink()  # between two writes: the old one stays
        assert await models(address, ClientTls(folder / "ca.crt")) == ["m"]


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", trustme.CA(), NAME)
    other = write_folder(tmp_path / "b", trustme.CA(), NAME)
    for key in (other / "tls.key", folder / "tls.crt"):
        files = TlsFiles(folder / "tls.crt", key)
        for use in (files.server_credentials, files.ssl_context):
            with pytest.raises(ValueError, match=r"a/tls\.crt"):
                use()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:50051", True),
        ("127.8.0.1:1", True),
        ("[::1]:50051", True),
        ("localhost:50051", True),
        ("unix:/run/o.sock", True),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        (":50051", False),
        ("*:50051", False),
        ("10.0.0.3:50051", False),
        ("router.octavo:50051", False),
    ],
)
def test_local_addresses_are_known(address: str, expected: bool) -> None:
    assert is_local(address) is expected


def test_plaintext_beyond_this_machine_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"listen_address 10\.0\.0\.3:1 .*--tls-cert-file"):
        RouterConfig(model="m", listen_address="10.0.0.3:1")
    with pytest.raises(ValueError, match=r"10\.0\.0\.3:1 .*--internal-tls-dir.*--insecure"):
        WorkerConfig(model="m", listen_address="10.0.0.3:1")
    folder = write_folder(tmp_path, trustme.CA(), "octavo")
    WorkerConfig(model="m", listen_address="10.0.0.3:1", internal_tls_dir=folder)
    WorkerConfig(model="m", listen_address="10.0.0.3:1", insecure=True)
    RouterConfig(model="m", listen_address="10.0.0.3:1", insecure=True)


def test_settings_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tls_cert_file and tls_key_file go together"):
        RouterConfig(model="m", tls_cert_file=tmp_path / "tls.crt")
    with pytest.raises(ValueError, match="tls_cert_file and tls_key_file go together"):
        RouterConfig(model="m", tls_client_ca_file=tmp_path / "ca.crt")
    with pytest.raises(ValueError, match=r"TLS needs .*tls\.crt: No such file"):
        WorkerConfig(model="m", internal_tls_dir=tmp_path)
    with pytest.raises(ValueError, match="cert_file and key_file go together"):
        ClientTls(cert_file="c")
    with pytest.raises(OSError, match=r"absent\.crt"):
        Client(tls=ClientTls(tmp_path / "absent.crt"))
