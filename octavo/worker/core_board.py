"""The file on which workers of one host lend each other cores that have nothing to do.

    the core's owner:  wanted = 1, wait until borrowed is 0, work ... idle: wanted = 0
    another's helper:  wanted is 0? borrowed = 1, work until wanted is 1, borrowed = 0

Two words a core, on a cache line of their own. Each is written by one side only, but for one case:
an owner that waited in vain clears `borrowed`, as the borrower must be dead. A core that nobody has
offered yet is wanted.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_CORES = 4096
WORDS = 16  # int32, a cache line
WANTED, BORROWED = 0, 1
# A helper leaves within a millisecond; one that is still there has died, or stands still.
BORROWER_LIMIT_S = 0.05
POLL_S = 0.0001

Words = npt.NDArray[np.int32]


class CoreBoard:
    """The file, mapped; made on first use, by whichever worker comes first."""

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            OSError: it cannot be made or opened.
            ValueError: it is some other file.
        """
        num_bytes = 4 * WORDS * MAX_CORES
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_size == 0:
                os.pwrite(file, _all_wanted().tobytes(), 0)
            fcntl.flock(file, fcntl.LOCK_UN)  # by hand: the mapping keeps the file open
            if os.fstat(file).st_size != num_bytes:
                raise ValueError(f"{path} is no core board: it has not {num_bytes} bytes")
            mapped = mmap.mmap(file, num_bytes, flags=mmap.MAP_SHARED)
        finally:
            os.close(file)
        self._words: Words = np.frombuffer(mapped, dtype=np.int32).reshape(-1, WORDS)

    def wanted(self, core: int) -> Words:
        """The word of that name, as an array of one."""
        return self._words[core, WANTED : WANTED + 1]

    def borrowed(self, core: int) -> Words:
        """The word of that name, as an array of one."""
        return self._words[core, BORROWED : BORROWED + 1]

    def wanted_address(self, core: int) -> int:
        return int(self.wanted(core).ctypes.data)

    def borrowed_address(self, core: int) -> int:
        return int(self.borrowed(core).ctypes.data)


class OwnCores:
    """An owner's side: wanted while it works, lent while it does not. Wanted at first."""

    def __init__(self, board: CoreBoard, cores: Iterable[int]) -> None:
        self._wanted = [board.wanted(core) for core in cores]
        self._borrowed = [board.borrowed(core) for core in cores]
        self.want()

    def want(self) -> None:
        """Ask whoever is on these cores to leave."""
        for word in self._wanted:
            word[0] = 1

    def lend(self) -> None:
        """Let others on."""
        for word in self._wanted:
            word[0] = 0

    def wait_until_free(self) -> None:
        """Return once nobody else is on these cores, or has had time enough to leave."""
        if not self._are_borrowed():
            return
        deadline = time.monotonic() + BORROWER_LIMIT_S
        while self._are_borrowed() and time.monotonic() < deadline:
            time.sleep(POLL_S)  # asleep: the helper needs this core to end its piece
        for word in self._borrowed:
            word[0] = 0

    def _are_borrowed(self) -> bool:
        return any(word[0] for word in self._borrowed)


def _all_wanted() -> Words:
    words = np.zeros((MAX_CORES, WORDS), dtype=np.int32)
    words[:, WANTED] = 1
    return words
