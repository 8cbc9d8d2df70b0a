"""A service whose every port has a lock: TLS and a key for clients, mTLS between our processes."""

from pathlib import Path

import grpc
import pytest
import trustme

from end_to_end.fleet import running_fleet
from octavo.client import AsyncClient, ClientTls, OctavoError
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.tls import PEER_NAME
from rpc.certificates import write_folder

KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
async def test_prompts_and_blocks_pass_through_locked_ports(
    llama: Path, tmp_path: Path, transport: str
) -> None:
    inside = write_folder(tmp_path / "inside", trustme.CA(), PEER_NAME)
    outside = write_folder(tmp_path / "outside", trustme.CA(), "127.0.0.1")
    (tmp_path / "keys").write_text(KEY)
    worker = {"internal_tls_dir": inside, "transport": transport}
    async with running_fleet(
        llama,
        prefill=worker,
        decode=worker,
        internal_tls_dir=inside,
        tls_cert_file=outside / "tls.crt",
        tls_key_file=outside / "tls.key",
        api_key_file=tmp_path / "keys",
    ) as fleet:
        tls = ClientTls(outside / "ca.crt")
        prompt = list(range(1, 100))
        async with AsyncClient(fleet.address, tls=tls, api_key=KEY) as client:
            locked = await client.generate(prompt, temperature=0.0, max_tokens=8)
        assert locked.usage.transferred_prompt_tokens > 0
        async with AsyncClient(fleet.address, tls=tls) as client:
            with pytest.raises(OctavoError) as caught:
                await client.generate(prompt)
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        await _check_strangers(fleet.worker_addresses("decode")[0], outside)
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address) as client:
        plain = await client.generate(prompt, temperature=0.0, max_tokens=8)
    assert locked.token_ids == plain.token_ids


async def _check_strangers(address: str, other: Path) -> None:
    """Neither plaintext nor a certificate of another authority reaches a worker."""
    stranger = ClientTls(other / "ca.crt", other / "tls.crt", other / "tls.key")
    for channel in (
        grpc.aio.insecure_channel(address),
        grpc.aio.secure_channel(address, stranger.channel_credentials()),
    ):
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await worker_pb2_grpc.WorkerServiceStub(channel).GetWorker(
                    worker_pb2.GetWorkerRequest(), timeout=3
                )
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
