"""`octavo probe`: a process's health as an exit status, over TLS too."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from octavo.rpc.server import SERVING, Server


async def probe(address: str, *flags: str) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "octavo.cli.app", "probe", f"--address={address}", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def test_ready_and_alive_are_told_apart() -> None:
    server = Server(("a.Service",))
    address = f"localhost:{await server.start('127.0.0.1:0')}"
    assert await probe(address) == (0, "")
    code, errors = await probe(address, "--service=a.Service")
    assert code == 1 and "NOT_SERVING" in errors
    await server.set_ready(True)
    assert await probe(address, "--service=a.Service") == (0, "")
    await server.grpc.stop(0)
    code, errors = await probe(address)
    assert code == 1 and "UNAVAILABLE" in errors


async def test_certificates_are_checked_on_both_sides(tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"]
    make += ["ec_paramgen_curve:prime256v1", "-subj", "/CN=x", "-addext"]
    make += ["subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    servicer = health.aio.HealthServicer()
    await servicer.set("", SERVING)
    server = grpc.aio.server()
    add: Any = health_pb2_grpc.add_HealthServicer_to_server
    add(servicer, server)
    pair = (key.read_bytes(), certificate.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], pair[1], require_client_auth=True)
    address = f"localhost:{server.add_secure_port('localhost:0', credentials)}"
    await server.start()
    trust = f"--tls-ca-file={certificate}"
    own = (f"--tls-cert-file={certificate}", f"--tls-key-file={key}")
    assert await probe(address, trust, *own) == (0, "")
    assert (await probe(address, trust))[0] == 1
    assert (await probe(address))[0] == 1
    by_number = address.replace("localhost", "127.0.0.1")
    assert (await probe(by_number, trust, *own))[0] == 1
    assert await probe(by_number, trust, *own, "--tls-name=localhost") == (0, "")
    await server.stop(0)


def test_a_probe_loads_none_of_the_other_commands() -> None:
    """A busy machine takes seconds to import them, and a kubelet waits a few alone."""
    code = (
        "import sys; from octavo.cli.app import main\n"
        "sys.argv[1:] = ['probe', '--address=unix:/x']\n"
        "try: main()\n"
        "finally: assert not {'typer', 'rich', 'pydantic', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "UNAVAILABLE" in done.stderr
    assert "AssertionError" not in done.stderr


def test_help_names_the_probe_and_its_options() -> None:
    for arguments, expected in ((["--help"], "probe"), (["probe", "--help"], "--tls-ca-file")):
        command = [sys.executable, "-m", "octavo.cli.app", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert expected in done.stdout
