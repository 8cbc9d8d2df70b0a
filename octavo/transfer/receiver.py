"""Decode worker's side of PullKv: open, check, copy into its own blocks, verify, acknowledge.

    peer --chunk--> check order and sizes --> [copy thread: copy into own blocks,
      ^                                        hash the destination] --> digests equal? --+
      +------------------------------- ack ----------------------------------------------+

Only this side writes its memory. The copy fence tells the engine when the last copy has ended,
whatever became of the task that started it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc

from octavo.engine.kv_cache import KVCache
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import DataLoss
from octavo.transfer.copy_fence import CopyFence
from octavo.transfer.copy_thread import CopyThread
from octavo.transfer.counters import TransferCounters
from octavo.transfer.digest import block_digests
from octavo.transfer.framing import MalformedFrame, decode
from octavo.transfer.peer_errors import from_peer
from octavo.transfer.peers import Peer, PullCall
from octavo.transfer.progress import are_finished
from octavo.transfer.segment import SegmentError

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0


@dataclass(slots=True)
class ReceivePath:
    """What all pulls of a decode worker share."""

    kv_cache: KVCache
    layout: worker_pb2.KvLayout
    copies: CopyThread
    counters: TransferCounters = field(default_factory=TransferCounters)
    _endings: set[asyncio.Task[None]] = field(default_factory=set)

    def end_later(self, call: PullCall, peer: Peer) -> None:
        """Nobody waits for the end of a pull that has delivered everything.

        The channel does: were it closed, the last acknowledgement could be lost.
        """
        peer.enter()
        ending = asyncio.create_task(_end_well(call, peer))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


@dataclass(frozen=True, slots=True)
class PullOrder:
    """One prompt's blocks: those before first_block are held already."""

    key: worker_pb2.RequestKey
    prompt_digest: bytes
    first_block: int
    block_ids: tuple[int, ...]  # own ones, of the whole prompt
    timeout_s: float | None


@asynccontextmanager
async def open_pull(
    path: ReceivePath, peer: Peer, order: PullOrder, fence: CopyFence
) -> AsyncIterator["KvPull"]:
    """Ask `peer` for the blocks; an exception cancels the pull, else it ends by itself."""
    call = peer.pull_kv(order.timeout_s)
    opening = worker_pb2.PullKvRequest.Open(
        key=order.key,
        epoch=peer.epoch,
        layout=path.layout,
        prompt_digest=order.prompt_digest,
        first_block=order.first_block,
        transport=peer.transport,
    )
    is_complete = False
    try:
        with path.counters.of(uses_segment=peer.segment is not None).pull():
            with from_peer(peer.name):
                await call.write(worker_pb2.PullKvRequest(open=opening))
            yield KvPull(path, peer, order, fence, call)
        is_complete = True
    finally:
        fence.close()
        if is_complete:
            path.end_later(call, peer)
        else:
            call.cancel()


class KvPull:
    """A pull under way."""

    def __init__(
        self, path: ReceivePath, peer: Peer, order: PullOrder, fence: CopyFence, call: PullCall
    ) -> None:
        self._path = path
        self._peer = peer
        self._order = order
        self._fence = fence
        self._call = call
        self._next_chunk = 0
        self._next_block = order.first_block

    @property
    def num_blocks(self) -> int:
        """Blocks received and verified so far."""
        return self._next_block - self._order.first_block

    async def receive(self, num_samples: int) -> worker_pb2.PullKvResponse.Completed:
        """Take every chunk; returns the first tokens when all blocks are verified.

        Those that all have finish reasons may come before the last block.

        Args:
            num_samples: tokens that must come; 0 for the candidates of a beam search.

        Raises:
            DataLoss: bytes failed their check, or the peer sent what cannot be.
            NoWorker: the peer is gone.
        """
        while True:
            with from_peer(self._peer.name):
                frame = await self._call.read()
            if not isinstance(frame, bytes):
                raise self._broken("it ended before its last message")
            try:
                response, payload = decode(frame)
            except MalformedFrame as error:
                raise self._broken(str(error)) from error
            if response.HasField("completed"):
                self._check_first(response.completed, num_samples)
                return response.completed
            if not response.HasField("chunk"):
                raise self._broken("a message has neither a chunk nor an end")
            await self._take(response.chunk, payload)

    async def _take(self, chunk: worker_pb2.PullKvResponse.Chunk, payload: memoryview) -> None:
        source = self._checked_source(chunk, payload)
        end = self._next_block + len(chunk.digests)
        copy = partial(
            _copy_blocks, self._path.kv_cache, self._order.block_ids[self._next_block : end], source
        )
        self._fence.begin_copy()
        digests = await self._path.copies.run(copy, self._fence.end_copy)
        for block, (got, sent) in enumerate(
            zip(digests, chunk.digests, strict=True), start=self._next_block
        ):
            if got != sent:
                self._path.counters.digest_mismatches += 1
                raise DataLoss(
                    f"block {block} of request {self._order.key.request_id} from "
                    f"{self._peer.name} has digest {got:016x}, sent as {sent:016x}"
                )
        moved = self._path.counters.of(uses_segment=self._peer.segment is not None)
        moved.add(len(digests), self._path.kv_cache.block_bytes)
        self._next_block = end
        self._next_chunk += 1
        ack = worker_pb2.PullKvRequest.Ack(chunk=chunk.chunk)
        with from_peer(self._peer.name):
            await self._call.write(worker_pb2.PullKvRequest(ack=ack))

    def _checked_source(
        self, chunk: worker_pb2.PullKvResponse.Chunk, payload: memoryview
    ) -> memoryview:
        """The chunk's bytes, once its order, bounds and size are right."""
        if chunk.chunk != self._next_chunk or chunk.first_block != self._next_block:
            raise self._broken(
                f"chunk {chunk.chunk} at block {chunk.first_block} came where chunk "
                f"{self._next_chunk} at block {self._next_block} was due"
            )
        num_blocks = len(chunk.digests)
        if not 1 <= num_blocks <= len(self._order.block_ids) - self._next_block:
            raise self._broken(
                f"chunk {chunk.chunk} has {num_blocks} blocks, "
                f"{len(self._order.block_ids) - self._next_block} are missing"
            )
        num_bytes = num_blocks * self._path.kv_cache.block_bytes
        if self._peer.segment is not None:
            try:
                return self._peer.segment.view(chunk.segment_offset, num_bytes)
            except SegmentError as error:
                raise self._broken(str(error)) from error
        if len(payload) != num_bytes:
            raise self._broken(f"chunk {chunk.chunk} has {len(payload)} bytes, not {num_bytes}")
        return payload

    def _check_first(self, first: worker_pb2.PullKvResponse.Completed, num_samples: int) -> None:
        tokens = first.tokens
        if [token.sample for token in tokens] != list(range(num_samples)):
            raise self._broken(f"it ended with tokens of {len(tokens)} samples, not {num_samples}")
        for token in tokens:
            if len(token.token_ids) != 1:
                raise self._broken(f"it ended with {len(token.token_ids)} tokens, not 1")
        candidates = first.candidates
        num_ids = len(candidates.token_ids)
        if num_ids != len(candidates.scores) or (num_ids > 0) != (num_samples == 0):
            raise self._broken(f"it ended with {num_ids} candidates of a beam search")
        missing = len(self._order.block_ids) - self._next_block
        if missing and not are_finished(first):
            raise self._broken(f"it ended while {missing} blocks are missing")

    def _broken(self, what: str) -> DataLoss:
        return DataLoss(
            f"the pull of request {self._order.key.request_id} from {self._peer.name} "
            f"cannot be used: {what}"
        )


def _copy_blocks(kv_cache: KVCache, block_ids: tuple[int, ...], source: memoryview) -> list[int]:
    """Write the blocks; returns digests of what the pool holds afterwards."""
    size = kv_cache.block_bytes
    for i, block_id in enumerate(block_ids):
        kv_cache.write_block(block_id, source[i * size : (i + 1) * size])
    return block_digests(kv_cache.read_block(block_id) for block_id in block_ids)


async def _end_well(call: PullCall, peer: Peer) -> None:
    """Let the peer see the last acknowledgement and end the stream itself."""
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await call.done_writing()
            await call.code()
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        logger.warning("a pull that had everything did not end well: %r", error)
        call.cancel()
    finally:
        await peer.leave()
