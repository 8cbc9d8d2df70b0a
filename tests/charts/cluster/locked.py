"""Every port has a lock: who has the certificates and a key is served, nobody else is answered.

client --TLS, certificate, key--> Service --> router --mTLS--> workers
"""

import asyncio
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import trustme

from charts.cluster import sandbox
from charts.cluster.cluster import Cluster
from charts.cluster.stage import Stage, play
from octavo.client import AsyncClient, ClientTls, OctavoError
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel
from octavo.rpc.tls import PEER_NAME, TlsFiles
from rpc.certificates import write_folder

VALUES = Path(__file__).with_name("locked.yaml")
FOLDER = sandbox.WORK / "certificates"
# What NOTES.txt tells clients to connect to.
NAMES = ("octavo-router.octavo", "octavo-router-headless.octavo")
GRPC_ADDRESSES = (f"{NAMES[0]}:50051", f"dns:///{NAMES[1]}:50051")
HTTP_ADDRESS = f"{NAMES[0]}:8000"
KEY, OTHER_KEY = "sk-0123456789abcdef", "sk-fedcba9876543210"


@dataclass(frozen=True)
class Caller:
    """Whom it trusts, as whom it comes, and its key."""

    ca: Path
    own: Path | None = None
    key: str | None = KEY

    @property
    def tls(self) -> ClientTls:
        own = self.own
        return ClientTls(self.ca, own and own / "tls.crt", own and own / "tls.key")

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.own is not None:
            context.load_cert_chain(self.own / "tls.crt", self.own / "tls.key")
        return context

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}


class Locks:
    """The Secrets that the manifests name, and certificates of those who come from elsewhere."""

    def __init__(self) -> None:
        outside, inside, elsewhere = trustme.CA(), trustme.CA(), trustme.CA()
        self.public = write_folder(FOLDER / "public", outside, *NAMES)
        self.internal = write_folder(FOLDER / "internal", inside, PEER_NAME)
        self.client = write_folder(FOLDER / "client", outside, "client")
        self.stranger = write_folder(FOLDER / "stranger", elsewhere, PEER_NAME)
        self.renewed = write_folder(FOLDER / "renewed", trustme.CA(), *NAMES)

    @property
    def secrets(self) -> dict[str, dict[str, bytes]]:
        return {
            "octavo-tls": files_of(self.public),
            "octavo-internal-tls": files_of(self.internal),
            "octavo-api-keys": {"keys": f"{OTHER_KEY}\n{KEY}\n".encode()},
            "octavo-cache": {"secret": b"s" * 32},
        }


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def run(stage: Stage) -> None:
    locks = Locks()
    known = Caller(locks.public / "ca.crt", locks.client)
    async with stage.cluster(VALUES, locks.secrets) as cluster:
        num_transferred = await _check_served(known, stage.asked)
        assert num_transferred > 0
        stage.tell(f"served over gRPC and HTTP, tokens as expected, {num_transferred} handed over")
        await _check_command(known)
        stage.tell("`octavo generate` is served, too")
        await _check_keys(known)
        stage.tell("without a key, or with a wrong one: UNAUTHENTICATED and 401")
        ca = known.ca
        for name, caller in (
            ("in plaintext", None),
            ("without a certificate", Caller(ca)),
            ("with a certificate from elsewhere", Caller(ca, locks.stranger)),
        ):
            await _check_shut(caller)
            stage.tell(f"{name}: refused over gRPC and HTTP")
        for deployment, port in (("octavo-prefill", 50061), ("octavo-decode", 50062)):
            await _check_worker(cluster, deployment, port, locks)
            stage.tell(f"{deployment} answers its own kind alone")
        cluster.renew("octavo-tls", files_of(locks.renewed))
        await _check_shut(known)
        await _check_served(Caller(locks.renewed / "ca.crt", locks.renewed), stage.asked[:1])
        stage.tell("a renewed Secret counts without a restart")


async def _check_served(caller: Caller, asked: list[dict[str, Any]]) -> int:
    """How many tokens' blocks passed from worker to worker."""
    num_transferred = 0
    for address in GRPC_ADDRESSES:
        async with AsyncClient(address, tls=caller.tls, api_key=caller.key, timeout_s=60) as client:
            for question in asked:
                expected = question["token_ids"]
                completion = await client.generate(
                    question["prompt"], temperature=0.0, max_tokens=len(expected), ignore_eos=True
                )
                assert list(completion.token_ids) == expected, (completion, expected)
                num_transferred += completion.usage.transferred_prompt_tokens
    for question in asked:
        reply = await _post(caller, question)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["token_ids"] == question["token_ids"], reply.text
    return num_transferred


async def _check_command(caller: Caller) -> None:
    assert caller.own is not None and caller.key is not None
    flags = ["--address", GRPC_ADDRESSES[0], "--ca-file", caller.ca, "--api-key", caller.key]
    flags += ["--cert-file", caller.own / "tls.crt", "--key-file", caller.own / "tls.key"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.cli.app", "generate", "Hello", "--max-tokens=4", *flags)
    )
    assert await process.wait() == 0


async def _check_keys(known: Caller) -> None:
    for key in (None, KEY[:-1]):
        caller = Caller(known.ca, known.own, key)
        assert await _grpc_status(caller) is grpc.StatusCode.UNAUTHENTICATED
        assert (await _post(caller)).status_code == 401


async def _check_shut(caller: Caller | None) -> None:
    """Not even the handshake succeeds; None speaks plaintext."""
    assert await _grpc_status(caller) is grpc.StatusCode.UNAVAILABLE
    try:
        reply = await _post(caller)
    except httpx.TransportError:
        return
    raise AssertionError(f"{caller} was answered: {reply.status_code} {reply.text}")


async def _grpc_status(caller: Caller | None) -> grpc.StatusCode:
    tls, key = (caller.tls, caller.key) if caller else (None, KEY)
    async with AsyncClient(GRPC_ADDRESSES[0], tls=tls, api_key=key, timeout_s=5) as client:
        try:
            await client.list_models()
        except OctavoError as error:
            return error.code
    return grpc.StatusCode.OK


async def _post(caller: Caller | None, question: dict[str, Any] | None = None) -> httpx.Response:
    question = question or {"prompt": [5], "token_ids": [5]}
    body = {
        "model": "model",
        "prompt": question["prompt"],
        "max_tokens": len(question["token_ids"]),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    url = f"{'https' if caller else 'http'}://{HTTP_ADDRESS}/v1/completions"
    verify = caller.context if caller else False
    async with httpx.AsyncClient(verify=verify, timeout=30) as client:
        return await client.post(url, json=body, headers=caller.headers if caller else {})


async def _check_worker(cluster: Cluster, deployment: str, port: int, locks: Locks) -> None:
    (pod,) = cluster.of(deployment)
    ca = locks.internal / "ca.crt"
    own, client, stranger = (
        TlsFiles(folder / "tls.crt", folder / "tls.key", ca)
        for folder in (locks.internal, locks.client, locks.stranger)
    )
    named = [("grpc.ssl_target_name_override", PEER_NAME)]
    address = f"{pod.ip}:{port}"
    nobody = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes()), named)
    plain, *others = (open_channel(address, tls) for tls in (None, client, stranger))
    for channel in (nobody, plain, *others):
        assert await _worker_status(channel) is grpc.StatusCode.UNAVAILABLE
    assert await _worker_status(open_channel(address, own)) is grpc.StatusCode.OK


async def _worker_status(channel: grpc.aio.Channel) -> grpc.StatusCode:
    async with channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        try:
            await stub.GetWorker(worker_pb2.GetWorkerRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


if __name__ == "__main__":
    play(run)
