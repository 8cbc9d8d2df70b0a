"""A team of threads for CPU kernels: the engine thread and helpers, each on a core of its own.

    engine thread:  with team.at_work():                     helper: sleeps in its pipe
                        run(kernel, args, 12, 1)  --mailbox-->  spins, takes items, ...
                        run(kernel, args, 3, 8)                 (no more than a chunk: main alone)
                    dismisses the helpers                      sleeps again

A kernel is numba code for a range of items: columns, rows, sequences. Its arguments are int64.

    @kernel_per_format
    def _scale(format):                          # uint16 for bfloat16, see vector.FORMATS
        def scale(args, first, last):            # items first .. last - 1
            x, out, size, item_bytes, factor = unpacked(args, 5)
            factor = splat(float_of(factor))
            for row in range(first, last):
                ...
        return scale

    run(_scale(x.dtype), (x.data_ptr(), out.data_ptr(), size, 2, float_bits(0.5)), num_rows, 16)

The last number is the grain: how many items are taken at once. A chunk should take 20 to 200 us: a
hand-over costs about 1 us, and a core that is wanted back comes free at the end of a chunk. Where
there are no more items than that, main works alone. Which thread computes what is decided as it
goes: an item's result must not depend on which items are taken along. A kernel never raises.

A core may be lent by another process. Whoever owns it sets `wanted` and waits until `borrowed` is
0; the helper leaves between two chunks, and while the step lasts it looks every 5 ms whether
`wanted` is 0 again: a step of a long prompt takes seconds.
A launcher is no more than the packing of arguments: it takes memory by `recording.empty`, calls
`run`, and uses nothing of torch that computes. Then a step's calls can be recorded (recording.py)
and made again without any launcher (program.py).

Only the thread that is inside `at_work` uses its team; all others work alone, as does everybody
where a team has no helpers, at the price of a direct call. A helper that another program keeps from
running is waited for once, then left alone for some steps (mailbox.py).
"""

import functools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numba.core import types

from octavo.kernels.cpu import mailbox as mail
from octavo.kernels.cpu.jit import c_function
from octavo.kernels.cpu.lanes import LINE
from octavo.kernels.cpu.recording import note, refuse
from octavo.kernels.cpu.vector import format_of

CLOSE_TIMEOUT_S = 5.0  # a thread that never gets a core must not keep the process
_SIGNATURE = types.void(types.int64, types.int64, types.int64)
Body = Callable[[int, int, int], None]


class Kernel:
    """Code for a range of items, compiled or loaded when it is first asked for."""

    def __init__(self, body: Body) -> None:
        self._body = body

    @functools.cached_property
    def address(self) -> int:
        self._compiled = c_function(self._body, _SIGNATURE)  # the code lives as long
        return int(self._compiled.address)


def kernel(body: Body) -> Kernel:
    """A kernel of (args, first, last) for one kind of memory."""
    return Kernel(body)


def kernel_per_format(make: Callable[[Any], Body]) -> Callable[[torch.dtype], Kernel]:
    """Kernels by the dtype of their tensors; `make` gets the format and returns the body."""

    @functools.cache
    def of_dtype(dtype: torch.dtype) -> Kernel:
        return Kernel(make(format_of(dtype)))

    return of_dtype


@functools.cache
def float_bits(value: float) -> int:
    """A float32 as an argument of a kernel."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


class _Here(threading.local):
    """The mailbox this thread works with; 0: it works alone."""

    mailbox = 0


_here = _Here()


def mailbox() -> int:
    """For code that hands out several kernels at once; see program.py."""
    refuse("a kernel is handed out without run")
    return _here.mailbox


def run(
    kernel: Kernel, args: tuple[int, ...], num_items: int, grain: int, num_columns: int = 0
) -> None:
    """Call kernel for all items, on this thread and its helpers; returns when all is done.

    Args:
        grain: items of a chunk; where num_columns is given, those of one column.
        num_columns: of the block tables that the kernel reads, if its items are the longer the
            more columns there are. A recorded call is made with the columns of each step.
    """
    note(kernel, args, num_items, grain, num_columns > 0)
    if num_columns > 0:
        grain = max(1, grain // num_columns)
    mail.run_kernel(_here.mailbox, kernel.address, args, num_items, grain)


@dataclass(frozen=True, slots=True)
class HelperCore:
    """Where a helper runs, and the two int32 by which its core is wanted back.

    core: None leaves the thread where the system puts it.
    wanted, borrowed: addresses, in memory shared with the core's owner; 0 for words of our own.
    """

    core: int | None = None
    wanted: int = 0
    borrowed: int = 0


class Team:
    """Starts a thread for each helper; used by one thread at a time, in steps."""

    def __init__(self, helpers: Sequence[HelperCore] = ()) -> None:
        """Raise ValueError if this process may not run on a helper's core."""
        self.num_helpers = len(helpers)
        self._lock = threading.Lock()
        self._mailbox = _zeros(mail.MAILBOX_BYTES)
        self._lines = _zeros(2 * mail.HELPER_BYTES * (len(helpers) or 1))
        self._pipes: list[tuple[int, int]] = []
        self._threads: list[threading.Thread] = []
        try:
            for index, helper in enumerate(helpers):
                self._start(index, helper)
            with self.at_work():  # compiled, or loaded, by now
                pass
        except BaseException:
            self.close()
            raise

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A step: what this thread runs inside is shared with the helpers whose core is free."""
        if self.num_helpers == 0:
            yield
            return
        address = _address(self._mailbox)
        with self._lock:
            before, _here.mailbox = _here.mailbox, address
            mail.start_step(address, _address(self._lines), self.num_helpers)
            try:
                yield
            finally:
                mail.end_step(address)
                _here.mailbox = before

    def close(self) -> None:
        """End the helper threads; twice is harmless. The team works on without them.

        They are gone afterwards: what their words lie in may be unmapped then.
        """
        with self._lock:
            pipes, self._pipes, self.num_helpers = self._pipes, [], 0
            threads, self._threads = self._threads, []
            for _, wake in pipes:
                os.close(wake)
            for thread in threads:
                thread.join(CLOSE_TIMEOUT_S)

    def _start(self, index: int, helper: HelperCore) -> None:
        line = self._lines[index * mail.HELPER_BYTES // 8 :]
        pipe, wake = os.pipe()
        os.set_blocking(wake, False)
        self._pipes.append((pipe, wake))
        line[0] = helper.wanted or _address(line) + mail.OWN_WANTED
        line[1] = helper.borrowed or _address(line) + mail.OWN_BORROWED
        line[2] = wake
        started: SimpleQueue[OSError | None] = SimpleQueue()
        thread = threading.Thread(
            target=_help,
            args=(self._mailbox, line, pipe, helper.core, started),
            name=f"octavo-helper-{index}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()
        error = started.get()
        if error is not None:
            raise ValueError(f"a helper may not run on core {helper.core}") from error


def _help(
    mailbox: np.ndarray,
    line: np.ndarray,
    pipe: int,
    core: int | None,
    started: SimpleQueue[OSError | None],
) -> None:
    """A helper thread: its arrays live as long as it does."""
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
    except OSError as error:
        started.put(error)
    else:
        started.put(None)
        room = _zeros(LINE)
        mail.help_main(_address(mailbox), _address(line), pipe, _address(room))
    os.close(pipe)


def _zeros(num_bytes: int) -> np.ndarray:
    """int64 that begin with a cache line."""
    room = np.zeros((num_bytes + LINE) // 8, np.int64)
    skipped = -room.ctypes.data % LINE // 8
    return room[skipped : skipped + num_bytes // 8]


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)
