"""Maps the pages of a pool on the CPU shortly before blocks in them are used for the first time.

    | in use | mapped ahead (64 MiB) | untouched, takes no memory |
             ^ moves on as blocks are allocated, lowest first

A first write to a page waits for the kernel, and in a virtual machine for its host: 6 ms for 2 MiB
were seen, ten times what it takes to receive as many bytes of KV. A thread with low priority waits
instead. Populating (Linux 5.14, `madvise(2)`) changes no byte, so it may run beside any writer.
"""

import contextlib
import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from octavo.engine.host_memory import HUGE_PAGE

AHEAD_BYTES = 64 << 20
LEAST_BYTES = 8 << 20  # that are worth waking the thread, and that no start uses
NICENESS = 10
MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)  # its calls leave the GIL, those of `mmap` do not


class PagesAhead:
    """Of one pool; used by one thread, beside its own."""

    def __init__(self, memory: torch.Tensor) -> None:
        """memory: [num_bytes] uint8 on Linux, which begins with a page."""
        self._memory = memory
        self._asked_bytes = 0
        self._thread = ThreadPoolExecutor(1, "pages", initializer=_give_way)

    def use(self, num_bytes: int) -> None:
        """So many leading bytes are in use: map what comes next, without waiting.

        Nothing before the first prompt of some length, which a start would wait for.
        """
        if num_bytes < LEAST_BYTES:
            return
        wanted = min(num_bytes + AHEAD_BYTES, len(self._memory))
        new = wanted - self._asked_bytes
        if new >= LEAST_BYTES or (new > 0 and wanted == len(self._memory)):
            self._thread.submit(_populate, self._memory, self._asked_bytes, wanted)
            self._asked_bytes = wanted


def _give_way() -> None:
    """To whoever has something to compute; niceness is a thread's own on Linux."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _populate(memory: torch.Tensor, start: int, end: int) -> None:
    """Page by page, so that no other fault of the process waits for long."""
    for offset in range(start // HUGE_PAGE * HUGE_PAGE, end, HUGE_PAGE):
        address = ctypes.c_void_p(memory.data_ptr() + offset)
        size = ctypes.c_size_t(min(HUGE_PAGE, end - offset))
        if _libc.madvise(address, size, MADV_POPULATE_WRITE):
            return  # a kernel that cannot: pages are mapped as they are written
