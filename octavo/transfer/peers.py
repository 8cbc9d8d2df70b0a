"""The prefill workers that a decode worker pulls from, each met once per epoch.

    WorkerRef --GetWorker--> same epoch? same layout? same /dev/shm? --> Peer (channel, segment)

A peer that died is dropped, by the pull that finds out or by the next meeting with another peer:
what it holds here (a channel, the memory of its segment) goes once no pull uses it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import grpc

from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import open_channel
from octavo.rpc.errors import Expired, InvalidRequest, NoWorker, Precondition
from octavo.rpc.tls import TlsFiles
from octavo.transfer.layout import check_layout
from octavo.transfer.namespace import shared_memory_namespace
from octavo.transfer.peer_errors import from_peer
from octavo.transfer.segment import AttachedSegment, SegmentError

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
_PULL_KV = "/octavo.internal.v1alpha1.KvTransferService/PullKv"

PullCall = grpc.aio.StreamStreamCall[worker_pb2.PullKvRequest, bytes]


@dataclass(slots=True, eq=False)
class Peer:
    """One incarnation of a prefill worker."""

    worker: worker_pb2.WorkerRef
    channel: grpc.aio.Channel
    segment: AttachedSegment | None
    num_users: int = 0
    is_dropped: bool = False

    @property
    def name(self) -> str:
        return f"prefill worker {self.worker.worker_id or self.worker.address}"

    @property
    def epoch(self) -> int:
        return self.worker.epoch

    @property
    def transport(self) -> worker_pb2.Transport:
        if self.segment is None:
            return worker_pb2.TRANSPORT_BYTES
        return worker_pb2.TRANSPORT_SHARED_MEMORY

    def enter(self) -> None:
        """Keep the channel open until `leave`."""
        self.num_users += 1

    async def leave(self) -> None:
        self.num_users -= 1
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        if self.is_dropped and self.num_users == 0:
            await self.channel.close()

    def pull_kv(self, timeout_s: float | None) -> PullCall:
        """Start a pull; its responses are left as bytes for the copy thread's sake."""
        pull_kv: grpc.aio.StreamStreamMultiCallable[worker_pb2.PullKvRequest, bytes]
        pull_kv = self.channel.stream_stream(
            _PULL_KV, request_serializer=_serialize, response_deserializer=bytes
        )
        return pull_kv(timeout=timeout_s)


@dataclass(slots=True)
class Peers:
    """Known peers by address."""

    layout: worker_pb2.KvLayout
    tls: TlsFiles | None = None
    transport: str = "auto"  # shared memory where it can be; or "shared_memory", or "bytes"
    _peers: dict[str, Peer] = field(default_factory=dict)
    # A lock lives as long as somebody meets the peer at its address.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def num_known(self) -> int:
        return len(self._peers)

    @asynccontextmanager
    async def use(self, ref: worker_pb2.WorkerRef) -> AsyncIterator[Peer]:
        """The peer that `ref` means; a peer found dead inside is forgotten.

        Raises:
            NoWorker: nobody answers there.
            Precondition: another incarnation answers, or its blocks do not fit ours.
        """
        peer = await self._get(ref)
        peer.enter()
        try:
            yield peer
        except NoWorker:
            self._drop(peer)
            raise
        finally:
            await peer.leave()

    async def close(self) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer)
            await peer.close_if_unused()

    async def _get(self, ref: worker_pb2.WorkerRef) -> Peer:
        if not ref.address:
            raise InvalidRequest("kv.prefill.address", "kv.prefill.address is empty")
        lock = self._locks.setdefault(ref.address, asyncio.Lock())
        async with lock:
            known = self._peers.get(ref.address)
            if known is not None and known.epoch == ref.epoch:
                return known
            peer = await self._meet(ref)
            if known is not None:
                self._drop(known)
                await known.close_if_unused()
            self._peers[ref.address] = peer
            await self._drop_lost()
            return peer

    async def _meet(self, ref: worker_pb2.WorkerRef) -> Peer:
        channel = open_channel(ref.address, self.tls)
        name = f"prefill worker at {ref.address}"
        try:
            with from_peer(name):
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                worker: worker_pb2.GetWorkerResponse = await stub.GetWorker(
                    worker_pb2.GetWorkerRequest(), timeout=HANDSHAKE_TIMEOUT_S
                )
            self._check(ref, worker, name)
            segment = self._attach(worker.shared_memory, name)
        except BaseException as error:
            await channel.close()
            if isinstance(error, Expired):  # our own limit, not the caller's deadline
                raise NoWorker(f"{name} did not answer within {HANDSHAKE_TIMEOUT_S:g} s") from error
            raise
        met = worker_pb2.WorkerRef(
            worker_id=worker.worker.worker_id, address=ref.address, epoch=ref.epoch
        )
        return Peer(met, channel, segment)

    def _check(
        self, ref: worker_pb2.WorkerRef, worker: worker_pb2.GetWorkerResponse, name: str
    ) -> None:
        if worker.role != worker_pb2.WORKER_ROLE_PREFILL:
            raise Precondition("kv.prefill.role", f"{name} is no prefill worker")
        if worker.worker.epoch != ref.epoch:
            raise Precondition(
                "kv.prefill.epoch",
                f"{name} has epoch {worker.worker.epoch:016x}, {ref.epoch:016x} was meant: "
                "it was restarted",
            )
        check_layout(self.layout, worker.layout, name)

    def _attach(self, offer: worker_pb2.SharedMemory, name: str) -> AttachedSegment | None:
        """The peer's segment; None: blocks come in messages.

        Raises:
            Precondition: it must be shared memory, and cannot be.
        """
        if self.transport == "bytes":
            return None
        try:
            return _attach(offer)
        except SegmentError as error:
            if self.transport == "shared_memory":
                raise Precondition("transport", f"no shared memory with {name}: {error}") from error
            logger.info("blocks of %s come in messages: %s", name, error)
            return None

    def _drop(self, peer: Peer) -> None:
        peer.is_dropped = True
        if self._peers.get(peer.worker.address) is peer:
            del self._peers[peer.worker.address]

    async def _drop_lost(self) -> None:
        """Nobody asks for a worker that is gone for good: its successor has a new address."""
        for peer in list(self._peers.values()):
            if peer.channel.get_state() is not grpc.ChannelConnectivity.READY:
                self._drop(peer)
                await peer.close_if_unused()


def _attach(offer: worker_pb2.SharedMemory) -> AttachedSegment:
    if not offer.name:
        raise SegmentError("none is offered")
    if offer.namespace_id != shared_memory_namespace():
        raise SegmentError("the two processes have different shared-memory file systems")
    return AttachedSegment(offer.name, offer.size_bytes)


def _serialize(request: worker_pb2.PullKvRequest) -> bytes:
    return request.SerializeToString()
