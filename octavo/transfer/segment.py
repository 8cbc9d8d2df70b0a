"""The shared-memory segment through which a prefill worker hands blocks to its host's decoders.

    prefill worker: pool --copy--> slot i of the segment      (StagingSegment, read and write)
    decode worker:                 slot i --copy--> own pool  (AttachedSegment, read only)

A slot holds one chunk and is used again once the receiver acknowledged it. Were it reused too early
(the pull broke, the receiver still copies), the digest that the receiver takes of its copy tells.

The segment is opened and mapped by hand: multiprocessing's resource tracker would unlink it when a
process that merely attached exits. The owner holds a lock on the file for life, so a sweep finds
the segments of dead processes also across pid namespaces and after a pid was used again.
"""

import asyncio
import fcntl
import logging
import mmap
import os
import re
import stat
from pathlib import Path

from octavo.transfer.namespace import SHM_FOLDER

logger = logging.getLogger(__name__)

_PREFIX = "octavo-kv-"
_NAME = re.compile(r"octavo-kv-[0-9]{1,10}-[0-9a-f]{16}")


class SegmentError(Exception):
    """A segment cannot be made or attached; the transfer falls back to bytes in messages."""


class StagingSegment:
    """Owner's side: `num_slots` slots of `slot_bytes`, and who holds which."""

    def __init__(self, epoch: int, slot_bytes: int, num_slots: int) -> None:
        """Make, lock and pre-fault the segment.

        Raises:
            SegmentError: /dev/shm is absent or too full.
        """
        self.name = f"{_PREFIX}{os.getpid()}-{epoch:016x}"
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        try:
            self._file, self._map = _create(SHM_FOLDER / self.name, self.size_bytes)
        except OSError as error:
            raise SegmentError(
                f"cannot make a segment of {self.size_bytes} bytes in {SHM_FOLDER}: {error}"
            ) from error
        self._view = memoryview(self._map)
        self._free: asyncio.Queue[int] = asyncio.Queue()  # its getters are served in order
        for slot in range(num_slots):
            self._free.put_nowait(slot)

    @property
    def size_bytes(self) -> int:
        return self.slot_bytes * self.num_slots

    @property
    def num_free(self) -> int:
        return self._free.qsize()

    async def take(self) -> int:
        """Wait for a free slot."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        self._free.put_nowait(slot)

    def offset(self, slot: int) -> int:
        return slot * self.slot_bytes

    def view(self, slot: int) -> memoryview:
        """The slot's bytes, writable."""
        return self._view[self.offset(slot) : self.offset(slot) + self.slot_bytes]

    def unlink(self) -> None:
        """Remove the name; mappings, ours and the receivers', live on until dropped."""
        (SHM_FOLDER / self.name).unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class AttachedSegment:
    """Receiver's side: a read-only mapping, dropped with the last view of it."""

    def __init__(self, name: str, size_bytes: int) -> None:
        """Map a segment that another process of this user made.

        Raises:
            SegmentError: the name is not one of ours, or the file is not what it should be.
        """
        if _NAME.fullmatch(name) is None:
            raise SegmentError(f"{name!r} is not the name of a segment")
        try:
            file = os.open(SHM_FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise SegmentError(f"cannot open segment {name}: {error}") from error
        try:
            _check_file(name, os.fstat(file), size_bytes)
            self._view = memoryview(
                mmap.mmap(file, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            )
        except (OSError, ValueError) as error:
            raise SegmentError(f"cannot map segment {name}: {error}") from error
        finally:
            os.close(file)
        self.name = name

    def view(self, offset: int, num_bytes: int) -> memoryview:
        """Bytes of the segment.

        Raises:
            SegmentError: they lie outside.
        """
        if offset + num_bytes > len(self._view):
            raise SegmentError(
                f"bytes {offset} to {offset + num_bytes} lie outside segment {self.name} "
                f"of {len(self._view)}"
            )
        return self._view[offset : offset + num_bytes]


def sweep_dead_segments(folder: Path = SHM_FOLDER) -> list[str]:
    """Remove segments whose owner is dead; returns their names."""
    removed = []
    for path in folder.glob(f"{_PREFIX}*"):
        if _NAME.fullmatch(path.name) and _remove_if_dead(path):
            logger.info("removed segment %s of a dead process", path.name)
            removed.append(path.name)
    return removed


def _create(path: Path, size_bytes: int) -> tuple[int, mmap.mmap]:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink == 0:  # a sweep came between open and lock
                os.close(file)
                continue
            os.posix_fallocate(file, 0, size_bytes)  # no space shows here, not as SIGBUS later
            return file, mmap.mmap(file, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(file)
            raise


def _check_file(name: str, status: os.stat_result, size_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SegmentError(f"segment {name} is not a regular file")
    if status.st_uid != os.geteuid():
        raise SegmentError(f"segment {name} belongs to user {status.st_uid}, not {os.geteuid()}")
    if status.st_size != size_bytes or size_bytes <= 0:
        raise SegmentError(f"segment {name} has {status.st_size} bytes, not {size_bytes}")


def _remove_if_dead(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone already, or another user's
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:  # the owner lives
        return False
    finally:
        os.close(file)
    return True
