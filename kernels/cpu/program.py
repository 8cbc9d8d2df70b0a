"""A step's kernel calls in one list, made again by a single call without Python in between.

entries  [num_calls, 5] int64: kernel, address of its arguments, items, grain, whether per column
args     every call's arguments, one after the other
"""

from collections.abc import Sequence

import numpy as np

from octavo.kernels.cpu.jit import jit
from octavo.kernels.cpu.mailbox import hand_out
from octavo.kernels.cpu.memory import read_i64
from octavo.kernels.cpu.recording import Call
from octavo.kernels.cpu.team import mailbox

KERNEL, ARGS, NUM_ITEMS, GRAIN, PER_COLUMN = range(5)
ENTRY_BYTES = 40


@jit
def _replay(mailbox, entries, num_entries, num_columns):
    for i in range(num_entries):
        entry = entries + i * ENTRY_BYTES
        grain = read_i64(entry, GRAIN)
        if read_i64(entry, PER_COLUMN) != 0:
            grain = max(1, grain // num_columns)
        kernel, args = read_i64(entry, KERNEL), read_i64(entry, ARGS)
        hand_out(mailbox, kernel, args, read_i64(entry, NUM_ITEMS), grain)


class Program:
    """Calls whose memory must live as long: it belongs to whoever recorded them."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._kernels = [call.kernel for call in calls]  # their code lives as long
        self._args = np.array([number for call in calls for number in call.args], np.int64)
        self._entries = np.empty((len(calls), ENTRY_BYTES // 8), np.int64)
        place = int(self._args.ctypes.data)
        for entry, call in zip(self._entries, calls, strict=True):
            entry[KERNEL], entry[ARGS] = call.kernel.address, place
            entry[NUM_ITEMS], entry[GRAIN] = call.num_items, call.grain
            entry[PER_COLUMN] = call.per_column
            place += 8 * len(call.args)

    def replay(self, num_columns: int) -> None:
        """Make all calls, in their order, shared as those of `team.run` are.

        num_columns: of the step's block tables; chunks of attention are the shorter the more.
        """
        address = int(self._entries.ctypes.data)
        _replay(mailbox(), address, len(self._entries), num_columns)
