"""Prefill worker's side of PullKv: complete blocks, grouped in chunks, behind a window.

    progress --run of blocks--> [copy thread: zero, hash, copy] --chunk--> write --> receiver
                                          |                                             |
                                   segment slot or message <------- ack: slot free -----+

Unused slots of the last block may hold another tenant's KV, so they are zeroed before the block is
hashed or sent: in the copy, never in the pool, which a late thread must not write.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.internal.v1alpha1 import worker_pb2
from octavo.transfer.copy_thread import CopyThread
from octavo.transfer.counters import TransferCounters
from octavo.transfer.digest import block_digests
from octavo.transfer.framing import encode_chunk
from octavo.transfer.progress import PromptProgress
from octavo.transfer.segment import StagingSegment
from octavo.transfer.window import Window

TARGET_CHUNK_BYTES = 4 << 20

Write = Callable[[bytes], Awaitable[None]]


def blocks_per_chunk(block_bytes: int) -> int:
    return max(1, TARGET_CHUNK_BYTES // block_bytes)


@dataclass(slots=True)
class SendPath:
    """What all pulls of a prefill worker share."""

    kv_cache: KVCache
    copies: CopyThread
    segment: StagingSegment | None  # None: bytes only
    counters: TransferCounters = field(default_factory=TransferCounters)


class ChunkSender:
    """Sends one prompt's blocks, then its first tokens."""

    def __init__(
        self, path: SendPath, segment: StagingSegment | None, window: Window, write: Write
    ) -> None:
        self._path = path
        self._segment = segment  # of path, or None when this pull takes bytes
        self._window = window
        self._write = write
        self._num_chunks = 0

    async def send(self, progress: PromptProgress, first_block: int) -> int:
        """Follow `progress` to its end; returns how many blocks were sent and acknowledged."""
        block_bytes = self._path.kv_cache.block_bytes
        next_block = first_block
        while not progress.needs_no_more(next_block):
            end = min(progress.num_complete_blocks, next_block + blocks_per_chunk(block_bytes))
            if next_block < end:
                await self._send_chunk(progress, next_block, end)
                next_block = max(next_block, end)
            else:
                await progress.change()
        last = worker_pb2.PullKvResponse(completed=progress.first)
        await self._write(last.SerializeToString())
        await self._window.wait_until_empty()
        moved = self._path.counters.of(uses_segment=self._segment is not None)
        moved.add(next_block - first_block, block_bytes)
        return next_block - first_block

    async def _send_chunk(self, progress: PromptProgress, start: int, end: int) -> None:
        await self._window.wait_for_room()
        read = partial(
            _read_blocks,
            self._path.kv_cache,
            progress.block_ids[start:end],
            progress.num_used_slots(end - 1),
        )
        header = worker_pb2.PullKvResponse.Chunk(chunk=self._num_chunks, first_block=start)
        if self._segment is None:
            frame = await self._path.copies.run(partial(_to_message, read, header), _nothing)
            on_acknowledged = _nothing
        else:
            frame, on_acknowledged = await self._stage(self._segment, read, header)
        self._window.add(self._num_chunks, on_acknowledged)
        self._num_chunks += 1
        await self._write(frame)

    async def _stage(
        self,
        segment: StagingSegment,
        read: Callable[[], list[memoryview]],
        header: worker_pb2.PullKvResponse.Chunk,
    ) -> tuple[bytes, Callable[[], None]]:
        """Copy a run into a slot; returns the frame and what frees the slot."""
        slot = await segment.take()
        lease = _SlotLease(segment, slot)
        header.segment_offset = segment.offset(slot)
        try:
            copy = partial(_to_slot, read, header, segment.view(slot))
            frame = await self._path.copies.run(copy, lease.copy_ended)
        except BaseException:
            lease.end()
            raise
        return frame, lease.end


class _SlotLease:
    """Gives a slot back once: when its copy has ended and its pull no longer needs it."""

    def __init__(self, segment: StagingSegment, slot: int) -> None:
        self._segment = segment
        self._slot = slot
        self._pending = 2

    def copy_ended(self) -> None:
        self._step()

    def end(self) -> None:
        self._step()

    def _step(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._segment.give_back(self._slot)


def zero_unused_slots(block: bytearray, layout: KVLayout, num_used_slots: int) -> None:
    """Clear slots num_used_slots and up of a block's bytes."""
    num_rows = layout.num_layers * 2 * layout.num_kv_heads
    # [layers * 2 * heads, block_size, bytes of head_dim]
    slots = np.frombuffer(block, np.uint8).reshape(num_rows, layout.block_size, -1)
    slots[:, num_used_slots:] = 0


def _read_blocks(
    kv_cache: KVCache, block_ids: tuple[int, ...], num_used_slots: int
) -> list[memoryview]:
    blocks = [kv_cache.read_block(block_id) for block_id in block_ids]
    if num_used_slots < kv_cache.layout.block_size:
        last = bytearray(blocks[-1])
        zero_unused_slots(last, kv_cache.layout, num_used_slots)
        blocks[-1] = memoryview(last)
    return blocks


def _to_message(
    read: Callable[[], list[memoryview]], header: worker_pb2.PullKvResponse.Chunk
) -> bytes:
    blocks = read()
    header.digests.extend(block_digests(blocks))
    return encode_chunk(header, blocks)


def _to_slot(
    read: Callable[[], list[memoryview]],
    header: worker_pb2.PullKvResponse.Chunk,
    slot: memoryview,
) -> bytes:
    blocks = read()
    header.digests.extend(block_digests(blocks))
    position = 0
    for block in blocks:
        slot[position : position + len(block)] = block
        position += len(block)
    return encode_chunk(header, [])


def _nothing() -> None:
    """An end that gives nothing back."""
