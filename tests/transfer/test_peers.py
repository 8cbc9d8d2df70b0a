"""Peers of a decode worker: dead ones are let go, silent ones are named, pulls end in peace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import torch

from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.errors import NoWorker
from octavo.transfer import peers as peers_module
from octavo.transfer.copy_fence import CopyFence
from octavo.transfer.copy_thread import CopyThread
from octavo.transfer.peers import Peers
from octavo.transfer.receiver import PullOrder, ReceivePath, open_pull

LAYOUT = worker_pb2.KvLayout(protocol_version=1, model_fingerprint="m", block_size=16)
TOKEN = worker_pb2.TokenDelta(token_ids=[7], finish_reason=1)


class PrefillStandIn(
    worker_pb2_grpc.WorkerServiceServicer, worker_pb2_grpc.KvTransferServiceServicer
):
    """Answers GetWorker; a pull gets its token at once, and is ended when `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ends: list[str] = []
        self.ended = asyncio.Event()
        self.server = grpc.aio.server()
        self.ref = worker_pb2.WorkerRef(worker_id="p", epoch=5)

    async def GetWorker(self, request: Any, context: Any) -> worker_pb2.GetWorkerResponse:
        return worker_pb2.GetWorkerResponse(
            worker=self.ref, role=worker_pb2.WORKER_ROLE_PREFILL, layout=LAYOUT
        )

    async def PullKv(self, requests: Any, context: Any) -> None:
        try:
            await context.read()
            completed = worker_pb2.PullKvResponse.Completed(tokens=[TOKEN])
            await context.write(worker_pb2.PullKvResponse(completed=completed))
            await self.may_end.wait()
            self.ends.append("well")
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        finally:
            self.ended.set()


@asynccontextmanager
async def stand_in() -> AsyncIterator[PrefillStandIn]:
    worker = PrefillStandIn()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, worker.server)
    worker_pb2_grpc.add_KvTransferServiceServicer_to_server(worker, worker.server)
    worker.ref.address = f"127.0.0.1:{worker.server.add_insecure_port('127.0.0.1:0')}"
    await worker.server.start()
    try:
        yield worker
    finally:
        await worker.server.stop(0)


async def test_a_peer_that_was_dropped_still_ends_its_last_pull_in_peace() -> None:
    copies = CopyThread()
    cache = KVCache(KVLayout("float32", 1, 1, 8, 16, ""), 1, torch.device("cpu"))
    path = ReceivePath(cache, LAYOUT, copies)
    order = PullOrder(worker_pb2.RequestKey(request_id="r"), b"", 0, (0,), 10)
    async with stand_in() as worker, asyncio.timeout(10):
        peers = Peers(LAYOUT)
        async with peers.use(worker.ref) as peer:
            async with open_pull(path, peer, order, CopyFence(lambda: None)) as pull:
                assert (await pull.receive(1)).tokens[0].token_ids == [7]
            with pytest.raises(NoWorker):
                async with peers.use(worker.ref):
                    raise NoWorker("it drains and takes no other request")
        asyncio.get_running_loop().call_later(0.1, worker.may_end.set)
        await worker.ended.wait()
        assert worker.ends == ["well"]
        await peers.close()
    copies.close()


async def test_a_peer_that_died_while_unused_is_let_go_when_another_is_met() -> None:
    async with stand_in() as old, stand_in() as new, asyncio.timeout(10):
        peers = Peers(LAYOUT)
        async with peers.use(old.ref) as peer:
            assert peers.num_known == 1
        ready = grpc.ChannelConnectivity.READY
        lost = asyncio.create_task(peer.channel.wait_for_state_change(ready))
        await old.server.stop(0)
        await lost
        async with peers.use(new.ref):
            assert peers.num_known == 1
        with pytest.raises(grpc.aio.UsageError, match="closed"):
            await peer.channel.unary_unary("/a/b")(b"")
        await peers.close()


async def test_a_peer_that_is_silent_is_unavailable_and_no_deadline_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    writers = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    peers = Peers(LAYOUT)
    with pytest.raises(NoWorker, match="did not answer within 0.2 s"):
        async with peers.use(worker_pb2.WorkerRef(address=f"{host}:{port}", epoch=5)):
            pass
    await peers.close()
    for writer in writers:
        writer.close()
    silent.close()
