"""Memory of a pool on the CPU: mapped where it is first written, in pages as large as there are.

A first write to a page of 4 KiB costs a fault: 1.4 ms a MiB in a virtual machine. In pages of 2 MiB
it is 0.6, and takes nothing but the advice (Linux with `transparent_hugepage` at `madvise` or
`always`; elsewhere it changes nothing).
"""

import contextlib
import math
import mmap

import numpy as np
import torch

HUGE_PAGE = 2 << 20


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """As torch.zeros; the memory goes with the last tensor on it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    start = -address % HUGE_PAGE  # else the first page would be made of small ones
    data = torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=start)
    return data.view(dtype).view(shape)
